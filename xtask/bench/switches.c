// Threads that wake one another, two on each CPU: whose turn it is works and wakes the other one.
//   switches TURNS WORK
// Prints how long TURNS turns of each thread took, in nanoseconds, the switches of its threads
// meanwhile, and the number of CPUs.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct thread {
    pthread_t id;
    int cpu, own, other;
};

static long turns, work;
static pthread_barrier_t ready;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static long switches(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage)) abort();
    return usage.ru_nvcsw + usage.ru_nivcsw;
}

static void give_turn(int event) {
    uint64_t one = 1;
    if (write(event, &one, sizeof one) != sizeof one) abort();
}

static void *take_turns(void *argument) {
    struct thread *thread = argument;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(thread->cpu, &cpus);
    if (pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus)) abort();
    pthread_barrier_wait(&ready);
    for (long turn = 0; turn < turns; turn++) {
        uint64_t given;
        if (read(thread->own, &given, sizeof given) != sizeof given) abort();
        volatile uint64_t sum = 0;
        for (long i = 0; i < work; i++) sum += (uint64_t)i;
        give_turn(thread->other);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: switches TURNS WORK\n");
        return 64;
    }
    turns = atol(argv[1]);
    work = atol(argv[2]);
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) abort();
    int cpus = CPU_COUNT(&allowed);
    struct thread *threads = calloc((size_t)cpus * 2, sizeof *threads);
    if (!threads || pthread_barrier_init(&ready, NULL, (unsigned)cpus * 2 + 1)) abort();
    int count = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        int events[2] = { eventfd(0, 0), eventfd(0, 0) };
        if (events[0] < 0 || events[1] < 0) abort();
        for (int of = 0; of < 2; of++) {
            struct thread *thread = &threads[count++];
            *thread = (struct thread){ .cpu = cpu, .own = events[of], .other = events[1 - of] };
            if (pthread_create(&thread->id, NULL, take_turns, thread)) abort();
        }
    }
    pthread_barrier_wait(&ready);
    long before = switches();
    double began = now();
    for (int i = 0; i < count; i += 2) give_turn(threads[i].own);
    for (int i = 0; i < count; i++) pthread_join(threads[i].id, NULL);
    printf("%.0f %ld %d\n", now() - began, switches() - before, cpus);
    return 0;
}
