/* Generates two functions, A and B, in turn at the same address, and tells of it by a perf map or a jitdump.
 *
 * A is only called by run_a, B only by run_b: so each stack tells what was really there. Arguments: perfmap, jitdump, tsc
 * (a jitdump with times of the CPU's counter), alien (a jitdump of another process), unwound (a jitdump with unwinding
 * information, of code that keeps no frame pointer), late (the same, written at the end), bare (such code in a perf map)
 * or silent; how many milliseconds A
 * and B run in each turn; how many turns. The CPU time of both is printed at the end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Where others can foresee it. */
#define CODE ((void *)0x200000000)

static unsigned char *code;
static int out = -1;
static int is_dump;
static int is_unwound;
static int is_late;
static int is_bare;
static char kept[4 << 20];
static size_t kept_length;

static uint64_t now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void put(const void *bytes, size_t length) {
    if (is_late && kept_length + length <= sizeof kept) {
        memcpy(kept + kept_length, bytes, length);
        kept_length += length;
        return;
    }
    if (write(out, bytes, length) != (ssize_t)length) {
        perror("write");
        exit(1);
    }
}

static void open_map(const char *mode) {
    char path[64];
    is_bare = strcmp(mode, "bare") == 0;
    is_dump = strcmp(mode, "perfmap") != 0 && !is_bare;
    is_late = strcmp(mode, "late") == 0;
    is_unwound = is_late || is_bare || strcmp(mode, "unwound") == 0;
    if (strcmp(mode, "silent") == 0)
        return;
    snprintf(path, sizeof path, is_dump ? "/tmp/jit-%d.dump" : "/tmp/perf-%d.map", (int)getpid());
    out = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0644);
    if (out < 0) {
        perror(path);
        exit(1);
    }
    if (!is_dump)
        return;
    struct {
        uint32_t magic, version, size, machine, pad, pid;
        uint64_t time, flags;
    } header = {0x4A695444, 1, sizeof header, 62, 0, (uint32_t)getpid(), now(CLOCK_MONOTONIC), 0};
    if (strcmp(mode, "tsc") == 0)
        header.flags = 1;
    if (strcmp(mode, "alien") == 0)
        header.pid += 1;
    put(&header, sizeof header);
    if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, out, 0) == MAP_FAILED) {
        perror("marker");
        exit(1);
    }
}

/* The .eh_frame of a function of `size` bytes that takes `frame` bytes of stack: see generate_unwound. */
static void tell_unwinding(size_t size, unsigned char frame) {
    unsigned char cie[] = {20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0};
    unsigned char fde[] = {36, 0, 0, 0, sizeof cie + 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0x0e, 16, 0x86, 2, 0x46,
                           0x0e, 16 + frame, 0x4d, 0x0e, 16, 0x41, 0xc6, 0x0e, 8, 0, 0, 0, 0, 0, 0, 0, 0};
    unsigned char header[20] = {1, 0x1b, 3, 0x3b};
    struct {
        uint32_t id, size;
        uint64_t time;
        uint64_t unwinding, header, mapped;
    } record = {4, sizeof record + sizeof cie + sizeof fde + 4 + sizeof header, now(CLOCK_MONOTONIC), sizeof cie + sizeof fde + 4 + sizeof header,
                sizeof header, 0};
    int32_t to_code = -(int32_t)(((size + 7) & ~(size_t)7) + sizeof cie + 8), code_size = (int32_t)size, end = 0;
    memcpy(fde + 8, &to_code, sizeof to_code);
    memcpy(fde + 12, &code_size, sizeof code_size);
    put(&record, sizeof record);
    put(cie, sizeof cie);
    put(fde, sizeof fde);
    put(&end, sizeof end);
    put(header, sizeof header);
}

static void tell(const char *name, size_t size) {
    static uint64_t index;
    char text[256];
    if (out < 0)
        return;
    if (!is_dump) {
        int length = snprintf(text, sizeof text, "%lx %zx %s\n", (unsigned long)code, size, name);
        put(text, (size_t)length);
        return;
    }
    struct {
        uint32_t id, size;
        uint64_t time;
        uint64_t address, count;
        uint64_t at;
        uint32_t line, column;
        char file[8];
    } debug = {2, sizeof debug, now(CLOCK_MONOTONIC), (uint64_t)code, 1, (uint64_t)code, 7, 0, "jit.src"};
    put(&debug, sizeof debug);
    struct {
        uint32_t id, size;
        uint64_t time;
        uint32_t pid, tid;
        uint64_t vma, address, code_size, index;
    } load = {0,    (uint32_t)(sizeof load + strlen(name) + 1 + size), now(CLOCK_MONOTONIC), (uint32_t)getpid(), (uint32_t)getpid(),
              (uint64_t)code, (uint64_t)code, size, index++};
    memcpy(text, &load, sizeof load);
    memcpy(text + sizeof load, name, strlen(name) + 1);
    memcpy(text + sizeof load + strlen(name) + 1, code, size);
    put(text, load.size);
}

/* push rbp; mov rbp, rsp; mov ecx, count; again: dec ecx; jnz again; pop rbp; ret */
static void generate(const char *name, uint32_t count, size_t pad) {
    unsigned char text[64] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0, 0, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0x5d, 0xc3};
    memcpy(text + 5, &count, sizeof count);
    memcpy(code, text, 15 + pad);
    tell(name, 15 + pad);
}

/* push rbp; xor ebp, ebp; sub rsp, frame; mov ecx, count; again: dec ecx; jnz again; add rsp, frame; pop rbp; ret */
static void generate_unwound(const char *name, uint32_t count, unsigned char frame) {
    unsigned char text[22] = {0x55, 0x31, 0xed, 0x48, 0x83, 0xec, frame, 0xb9, 0, 0, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0x48, 0x83, 0xc4,
                              frame, 0x5d, 0xc3};
    memcpy(text + 8, &count, sizeof count);
    memcpy(code, text, sizeof text);
    if (!is_bare)
        tell_unwinding(sizeof text, frame);
    tell(name, sizeof text);
}

static uint64_t run(unsigned ms) {
    uint64_t start = now(CLOCK_PROCESS_CPUTIME_ID), end = start + ms * 1000000ull;
    while (now(CLOCK_PROCESS_CPUTIME_ID) < end)
        ((void (*)(void))code)();
    return now(CLOCK_PROCESS_CPUTIME_ID) - start;
}

__attribute__((noinline)) uint64_t run_a(unsigned ms) {
    uint64_t spent = run(ms);
    __asm__ volatile("");
    return spent;
}

__attribute__((noinline)) uint64_t run_b(unsigned ms) {
    uint64_t spent = run(ms);
    __asm__ volatile("" ::: "memory");
    return spent;
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 64;
    unsigned a = (unsigned)atoi(argv[2]), b = (unsigned)atoi(argv[3]), turns = (unsigned)atoi(argv[4]);
    uint64_t in_a = 0, in_b = 0;
    code = mmap(CODE, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (code == MAP_FAILED)
        return 1;
    open_map(argv[1]);
    for (unsigned turn = 0; turn < turns; turn++) {
        if (is_unwound)
            generate_unwound("jit_a", 20000, 24);
        else
            generate("jit_a", 20000, 0);
        in_a += run_a(a);
        if (is_unwound)
            generate_unwound("jit_b", 20000, 72);
        else
            generate("jit_b", 20000, 8);
        in_b += run_b(b);
    }
    if (is_late) {
        is_late = 0;
        put(kept, kept_length);
    }
    printf("%lu %lu\n", (unsigned long)in_a, (unsigned long)in_b);
    return 0;
}
