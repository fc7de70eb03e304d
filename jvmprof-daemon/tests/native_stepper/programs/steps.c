/* Whatever changes a stack: prologues of all kinds, callbacks, alloca, realignment, tail calls, functions that never return,
   signals in the middle of anything, the vdso, the PLT. Ends by itself. */
#define _GNU_SOURCE
#include <alloca.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t sink;
static jmp_buf back;

__attribute__((noinline)) static uint64_t leaf(uint64_t x) { return x * 6364136223846793005u + 1; }

__attribute__((noinline)) static uint64_t deep(unsigned depth, uint64_t x) {
    return depth ? deep(depth - 1, x ^ depth) + leaf(x) : leaf(x);
}

__attribute__((noinline)) static uint64_t on_the_stack(unsigned bytes, uint64_t x) {
    volatile char *room = alloca(bytes);
    room[bytes / 2] = (char)x;
    uint64_t y = bytes > 64 ? on_the_stack(bytes / 2, leaf(x)) : leaf(x);
    return y + (unsigned char)room[bytes / 2];
}

__attribute__((noinline)) static uint64_t aligned(uint64_t x) {
    volatile char room[256] __attribute__((aligned(128)));
    room[x & 255] = (char)x;
    return leaf(x) + (unsigned char)room[x & 255];
}

__attribute__((noinline, noreturn)) static void leave(uint64_t x) {
    sink += leaf(x);
    longjmp(back, 1);
}

__attribute__((noinline)) static uint64_t tail(uint64_t x) { return leaf(x + 1); }

__attribute__((noinline)) static uint64_t choose(unsigned what, uint64_t x) {
    switch (what) {
    case 0: return leaf(x) + 1;
    case 1: return deep(3, x);
    case 2: return tail(x) ^ 5;
    case 3: return aligned(x) + leaf(x);
    case 4: return on_the_stack(100, x);
    case 5: sink += leaf(x); return leaf(sink) * 3;
    default: return tail(x);
    }
}

static int compare(const void *a, const void *b) {
    uint64_t x = leaf(*(const uint64_t *)a), y = leaf(*(const uint64_t *)b);
    return x < y ? -1 : x > y;
}

static void on_signal(int number) { sink += deep(3, (uint64_t)number); }

static void on_signal_with_context(int number, siginfo_t *info, void *context) {
    sink += aligned((uint64_t)number + (uint64_t)(uintptr_t)info + (uint64_t)(uintptr_t)context);
}

int main(void) {
    struct sigaction with_context = {.sa_sigaction = on_signal_with_context, .sa_flags = SA_SIGINFO};
    char text[128];
    uint64_t numbers[24];
    signal(SIGALRM, on_signal);
    sigaction(SIGUSR1, &with_context, NULL);
    for (uint64_t x = 1; x < 40; x++) {
        struct timespec now;
        struct timeval day;
        sink += deep(60, x) + on_the_stack(1 << 10, x) + aligned(x) + tail(x);
        for (unsigned what = 0; what < 8; what++) sink += choose(what, x);
        for (int i = 0; i < 24; i++) numbers[i] = leaf(x + i);
        qsort(numbers, 24, sizeof *numbers, compare);
        clock_gettime(CLOCK_MONOTONIC, &now);
        gettimeofday(&day, NULL);
        sink += (uint64_t)now.tv_nsec + (uint64_t)day.tv_usec + (uint64_t)time(NULL);
        char *copy = strdup(text + snprintf(text, sizeof text, "%lu of %g, %s", (unsigned long)x, (double)x, "text") / 2);
        sink += strlen(copy) + (uint64_t)atoi(text);
        free(copy);
        raise(SIGUSR1);
        if (!setjmp(back)) leave(x);
    }
    return sink == 1;
}
