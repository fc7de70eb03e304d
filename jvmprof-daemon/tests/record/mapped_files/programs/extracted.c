// Loads a library, removes its file as Java libraries do with what they extract, and calls it:
// `extracted LIBRARY SECONDS`.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    void *loaded = argc == 3 ? dlopen(argv[1], RTLD_NOW) : 0;
    unsigned long (*work)(void) = loaded ? (unsigned long (*)(void))dlsym(loaded, "work") : 0;
    if (!work || unlink(argv[1])) {
        fprintf(stderr, "%s can't be used\n", argc > 1 ? argv[1] : "no library");
        return 1;
    }
    time_t end = time(0) + atoi(argv[2]);
    unsigned long sum = 0;
    while (time(0) < end) sum += work();
    return sum == 1;
}
