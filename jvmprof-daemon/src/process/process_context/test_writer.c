// A program that publishes a context as OTEP 4719 has it, as lines on its input say, and answers
// each with a line.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SIZE 8192
// Bytes at the end of an endless payload that change.
#define END 4000
#define PR_SET_VMA 0x53564d41

struct header {
    char signature[8];
    uint32_t version;
    uint32_t payload_size;
    _Atomic uint64_t published_at;
    char *payload;
};

static struct header *header;
static uint64_t published;
static volatile int running;

static char *decoded(const char *hex, uint32_t *size) {
    *size = strlen(hex) / 2;
    char *bytes = malloc(*size + 1);
    for (uint32_t i = 0; i < *size; i++) {
        unsigned byte;
        sscanf(hex + 2 * i, "%2x", &byte);
        bytes[i] = byte;
    }
    return bytes;
}

static void map(const char *kind) {
    int shared = !strcmp(kind, "anon") ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_ANONYMOUS;
    if (!strcmp(kind, "memfd")) {
        int fd = memfd_create("OTEL_CTX", 0);
        if (ftruncate(fd, SIZE)) exit(1);
        header = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    } else {
        header = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, shared, -1, 0);
        prctl(PR_SET_VMA, 0, header, SIZE, "OTEL_CTX");
    }
    madvise(header, SIZE, MADV_DONTFORK);
}

static void update(char *payload, uint32_t size) {
    atomic_store(&header->published_at, 0);
    header->payload = payload;
    header->payload_size = size;
    atomic_store(&header->published_at, ++published);
}

// Publishes one of two payloads and the other again and again, and overwrites the old one.
static void *publish_on(void *hex) {
    uint32_t size;
    char *payloads[2] = {decoded(hex, &size), decoded(hex, &size)};
    for (int i = 0; running; i = !i) {
        char letter = 'a' + published % 26;
        memset(payloads[i] + size - END, letter, END);
        update(payloads[i], size);
        // Some of the reads meet no change.
        for (volatile int pause = published % 64 * 64; pause > 0; pause--) {}
    }
    return NULL;
}

int main(void) {
    static char line[1 << 20], kind[16], hex[1 << 20];
    pthread_t thread;
    while (fgets(line, sizeof line, stdin)) {
        uint32_t size = 0;
        *kind = *hex = 0;
        if (sscanf(line, "publish %15s %1048000s", kind, hex) == 2) {
            map(kind);
            header->version = 2;
            char *payload = decoded(hex, &size);
            update(payload, size);
            atomic_thread_fence(memory_order_seq_cst);
            memcpy(header->signature, "OTEL_CTX", 8);
        } else if (sscanf(line, "update %1048000s", hex) == 1) {
            char *payload = decoded(hex, &size);
            update(payload, size);
        } else if (sscanf(line, "endless %1048000s", hex) == 1) {
            running = 1;
            pthread_create(&thread, NULL, publish_on, strdup(hex));
        } else if (!strncmp(line, "quiet", 5)) {
            running = 0;
            pthread_join(thread, NULL);
        } else if (sscanf(line, "size %u", &size) == 1) {
            header->payload_size = size;
        } else if (sscanf(line, "version %u", &size) == 1) {
            header->version = size;
        } else if (!strncmp(line, "begin", 5)) {
            atomic_store(&header->published_at, 0);
        } else if (!strncmp(line, "nowhere", 7)) {
            update((char *)4096, 100);
        } else if (!strncmp(line, "remove", 6)) {
            munmap(header, SIZE);
        }
        printf("done %p\n", header);
        fflush(stdout);
    }
}
