// Publishes contexts of threads and of the process, as OTEP 4947 and 4719 have them: a part of the
// program, or a library that it loads. BEFORE_PAGE_END: records begin so many bytes before the end
// of a page; LAST_PAGE: nothing is mapped after it. FILLER: bytes of an attribute before the route.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct record {
    uint8_t trace_id[16], span_id[8], valid, flags;
    uint16_t attributes_size;
    uint8_t attributes[612];
};

#define FENCE atomic_signal_fence(memory_order_seq_cst)

__attribute__((visibility("default"))) __thread struct record *volatile otel_thread_ctx_v1;
// Makes the variable's place in the block another one than the first.
__attribute__((visibility("default"))) __thread char otel_test_other[40] = "x";

#ifdef BEFORE_PAGE_END
static __thread struct record *own;

static void prepare(void) {
    if (own) return;
    char *pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#ifdef LAST_PAGE
    mprotect(pages + 4096, 4096, PROT_NONE);
#endif
    own = (struct record *)(pages + 4096 - BEFORE_PAGE_END);
}
#else
static __thread struct record in_block, *own;

static void prepare(void) { own = &in_block; }
#endif

static void append(const char *text, uint8_t key) {
    uint8_t length = strlen(text);
    uint8_t *end = own->attributes + own->attributes_size;
    end[0] = key;
    end[1] = length;
    memcpy(end + 2, text, length);
    own->attributes_size += 2 + length;
}

// The request of this number begins on the thread. `by_pointer`: it is detached by the pointer while
// its record is written, else by the record's own flag.
void attach(int number, int by_pointer) {
    char route[64];
    snprintf(route, sizeof route, "/route/%d", number);
    prepare();
    if (by_pointer) otel_thread_ctx_v1 = 0; else ((volatile struct record *)own)->valid = 0;
    FENCE;
    memset(own->trace_id, 0xa0 + number, 16);
    memset(own->span_id, 0x10 + number, 8);
    own->attributes_size = 0;
    append("GET", 0);
    append("old", 1);
#ifdef FILLER
    char filler[FILLER + 1];
    memset(filler, 'f', FILLER);
    filler[FILLER] = 0;
    append(filler, 201);
#endif
    append(route, 1);
    append("no key has this index", 200);
    FENCE;
    ((volatile struct record *)own)->valid = 1;
    FENCE;
    otel_thread_ctx_v1 = own;
    FENCE;
}

void detach(int by_pointer) {
    FENCE;
    if (by_pointer) otel_thread_ctx_v1 = 0; else ((volatile struct record *)own)->valid = 0;
    FENCE;
}

// Where the variable of the running thread is: for writers in other languages.
struct record *volatile *context_variable(void) { return &otel_thread_ctx_v1; }

void publish(const char *payload_hex) {
    static struct { char signature[8]; uint32_t version, size; uint64_t at; char *payload; } *header;
    uint32_t size = strlen(payload_hex) / 2;
    int fd = memfd_create("OTEL_CTX", 0);
    if (ftruncate(fd, 65536)) return;
    header = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    char *payload = (char *)(header + 1);
    for (uint32_t i = 0; i < size; i++) {
        unsigned byte;
        sscanf(payload_hex + 2 * i, "%2x", &byte);
        payload[i] = byte;
    }
    memcpy(header->signature, "OTEL_CTX", 8);
    header->version = 2;
    header->size = size;
    header->payload = payload;
    atomic_thread_fence(memory_order_seq_cst);
    header->at = 1;
}
