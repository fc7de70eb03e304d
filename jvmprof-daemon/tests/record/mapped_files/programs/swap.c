// Loads and unloads two libraries by turns, at the same addresses: `swap SECONDS`. Prints how often they shared one.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long Work(void);

__attribute__((noinline, noclone)) unsigned long in_a(Work *work) { return work() + 1; }
__attribute__((noinline, noclone)) unsigned long in_b(Work *work) { return work() + 2; }

static void *run(const char *library, unsigned long (*in)(Work *)) {
    void *loaded = dlopen(library, RTLD_NOW);
    if (!loaded) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    void *work = dlsym(loaded, "work");
    in((Work *)work);
    Dl_info info = {0};
    dladdr(work, &info);
    void *base = info.dli_fbase;
    dlclose(loaded);
    return base;
}

int main(int argc, char **argv) {
    time_t end = time(0) + atoi(argv[argc - 1]);
    int turns = 0, shared = 0;
    while (time(0) < end) {
        void *a = run("./liba.so", in_a);
        void *b = run("./libb.so", in_b);
        turns++;
        shared += a == b;
    }
    printf("%d of %d\n", shared, turns);
    return shared == 0;
}
