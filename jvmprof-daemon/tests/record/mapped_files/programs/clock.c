// Asks for the time without end: in code that the kernel maps, the vdso.
#include <time.h>

volatile long sink;

__attribute__((noinline, noclone)) void ask(void) {
    struct timespec now;
    for (int i = 0; i < 1000000; i++) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        sink += now.tv_nsec;
    }
}

int main(void) {
    for (;;) ask();
}
