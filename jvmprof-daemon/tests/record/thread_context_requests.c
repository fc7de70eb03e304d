// Threads that work on one short request after the other: request N is the function request_N, and
// has a trace of its own. Arguments: the process context's payload in hexadecimal digits, and the
// library that publishes contexts, where that isn't linked. With a third one, a file, the threads
// write into it how many contexts each has attached and detached in a second of its CPU time.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef LOADED
static void (*attach)(int, int), (*detach)(int);
static void (*publish)(const char *);
#else
void attach(int number, int by_pointer);
void detach(int by_pointer);
void publish(const char *payload_hex);
#endif

// Additions in a request, and between two.
#ifndef ROUNDS
#define ROUNDS 2000
#endif
#ifndef ROUNDS_BETWEEN
#define ROUNDS_BETWEEN 300
#endif

// By thread.
static volatile uint64_t *rates;
static volatile uint64_t sink;

static inline void work(uint64_t rounds) {
    for (uint64_t i = 0; i < rounds; i++) sink += i;
}

#define REQUEST(N) __attribute__((noinline)) void request_##N(uint64_t rounds) { work(rounds); sink++; }
REQUEST(0) REQUEST(1) REQUEST(2) REQUEST(3) REQUEST(4) REQUEST(5) REQUEST(6) REQUEST(7)
static void (*const requests[])(uint64_t) = {
    request_0, request_1, request_2, request_3, request_4, request_5, request_6, request_7,
};

__attribute__((noinline)) void between(void) { work(ROUNDS_BETWEEN); sink++; }

static void keep_rate(int thread, uint64_t switches) {
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    rates[thread] = switches / (used.tv_sec + used.tv_nsec / 1e9);
}

static void *serve(void *argument) {
    int by_pointer = (intptr_t)argument & 1;
    unsigned seed = (uintptr_t)argument;
    for (uint64_t served = 0;; served++) {
        if (rates && served % 65536 == 65535) keep_rate((intptr_t)argument - 1, 2 * served);
        int number = rand_r(&seed) % 8;
        attach(number, by_pointer);
        requests[number](ROUNDS);
        detach(by_pointer);
        between();
    }
    return 0;
}

int main(int count, char **arguments) {
#ifdef LOADED
    void *library = dlopen(arguments[2], RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    attach = (void (*)(int, int))dlsym(library, "attach");
    detach = (void (*)(int))dlsym(library, "detach");
    publish = (void (*)(const char *))dlsym(library, "publish");
#endif
    if (count > 3) {
        int file = open(arguments[3], O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (file < 0 || ftruncate(file, 4096)) return perror(arguments[3]), 1;
        rates = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (rates == MAP_FAILED) return perror("mmap"), 1;
    }
    publish(arguments[1]);
    pthread_t thread;
    pthread_create(&thread, 0, serve, (void *)1);
    serve((void *)2);
    return 0;
}
