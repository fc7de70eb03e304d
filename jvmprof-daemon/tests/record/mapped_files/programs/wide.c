// Works for some milliseconds of CPU time behind a frame of 64 KiB, and ends: a busy machine takes
// as many samples of it.
#include <string.h>
#include <time.h>

volatile unsigned long sink;

__attribute__((noinline, noclone)) unsigned long leaf(unsigned long n) {
    unsigned long sum = 0;
    for (unsigned long i = 0; i < n; i++) {
        sum += i * sink;
        sink = sum;
    }
    return sum;
}

__attribute__((noinline, noclone)) unsigned long wide(void) {
    char buffer[64 << 10];
    struct timespec begin, now;
    unsigned long sum = 0;
    memset(buffer, (int)sink, sizeof buffer);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    do {
        sum += leaf(10000) + buffer[sum % sizeof buffer];
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < 20);
    return sum + 1;
}

int main(void) {
    return wide() == 0;
}
