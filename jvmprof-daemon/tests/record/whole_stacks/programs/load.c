/* C as distributions build it: deep recursion, alloca, callbacks from libc, tail calls, functions that never return, signals. */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static volatile uint64_t sink;
static __thread jmp_buf back;

__attribute__((noinline)) static uint64_t leaf(uint64_t x) {
    for (int i = 0; i < 40; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    return x;
}

__attribute__((noinline)) static uint64_t deep(unsigned depth, uint64_t x) {
    if (depth == 0) return leaf(x);
    return deep(depth - 1, x ^ depth) + leaf(x);
}

__attribute__((noinline)) static uint64_t on_the_stack(unsigned bytes, uint64_t x) {
    volatile char *room = alloca(bytes);
    for (unsigned i = 0; i < bytes; i += 64) room[i] = (char)x;
    uint64_t y = bytes > 64 ? on_the_stack(bytes / 2, leaf(x)) : leaf(x);
    return y + (unsigned char)room[bytes / 2];
}

__attribute__((noinline)) static uint64_t aligned(uint64_t x) {
    volatile char room[256] __attribute__((aligned(128)));
    for (int i = 0; i < 256; i++) room[i] = (char)(x + i);
    return leaf(x) + (unsigned char)room[x & 255];
}

__attribute__((noinline, noreturn)) static void leave(uint64_t x) {
    sink += leaf(x);
    longjmp(back, 1);
}

static int compare(const void *a, const void *b) {
    uint64_t x = leaf(*(const uint64_t *)a), y = leaf(*(const uint64_t *)b);
    return x < y ? -1 : x > y;
}

__attribute__((noinline)) static uint64_t last_call(uint64_t x) { return leaf(x + 1); }

static void on_alarm(int number) { sink += deep(10, (uint64_t)number); }

static void *work(void *from) {
    uint64_t x = (uint64_t)(uintptr_t)from, numbers[200];
    char text[256];
    for (;;) {
        sink += deep(200, x);
        sink += on_the_stack(1 << 14, x) + aligned(x) + last_call(x);
        for (int i = 0; i < 200; i++) numbers[i] = leaf(x + i);
        qsort(numbers, 200, sizeof *numbers, compare);
        for (int i = 0; i < 20; i++) {
            char *copy = strdup(text + snprintf(text, sizeof text, "%llu of %g", (unsigned long long)x, (double)x) / 2);
            sink += strlen(copy);
            free(copy);
        }
        if (!setjmp(back)) leave(x);
        x = leaf(x);
    }
    return NULL;
}

int main(void) {
    struct itimerval often = {{0, 7000}, {0, 7000}};
    pthread_t other;
    signal(SIGALRM, on_alarm);
    setitimer(ITIMER_REAL, &often, NULL);
    if (pthread_create(&other, NULL, work, (void *)1)) return 1;
    puts("ready");
    fflush(stdout);
    work((void *)2);
}
