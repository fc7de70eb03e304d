// One of two libraries whose code differs in its frames: -DNAME=a -DFRAME=40.
#include <time.h>

#define PASTE(x, y) x##_##y
#define NAMED(x, y) PASTE(x, y)

volatile unsigned long NAMED(sink, NAME);

__attribute__((noinline, noclone)) unsigned long NAMED(leaf, NAME)(unsigned long n) {
    volatile char frame[FRAME];
    for (unsigned long i = 0; i < n; i++) {
        frame[i % FRAME] = i;
        NAMED(sink, NAME) += frame[i * 7 % FRAME];
    }
    return NAMED(sink, NAME);
}

__attribute__((noinline, noclone)) unsigned long NAMED(middle, NAME)(unsigned long n) {
    volatile char frame[FRAME];
    frame[n % FRAME] = 1;
    return NAMED(leaf, NAME)(n) + frame[n % FRAME];
}

unsigned long work(void) {
    struct timespec begin, now;
    unsigned long sum = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        sum += NAMED(middle, NAME)(10000);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < 100);
    return sum + 1;
}
