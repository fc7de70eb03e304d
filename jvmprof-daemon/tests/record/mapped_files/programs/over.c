// Maps two libraries over one another by turns, at an address of its own choice: `over TURNS MILLISECONDS`.
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long Work(unsigned long);

static char *const PLACE = (char *)0x200000000;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static Work *map(const char *library) {
    Elf64_Ehdr header;
    int file = open(library, O_RDONLY);
    if (file < 0 || pread(file, &header, sizeof header, 0) != sizeof header) fail(library);
    for (int i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr part;
        if (pread(file, &part, sizeof part, header.e_phoff + i * sizeof part) != sizeof part) fail(library);
        if (part.p_type != PT_LOAD) continue;
        int can = (part.p_flags & PF_R ? PROT_READ : 0) | (part.p_flags & PF_W ? PROT_WRITE : 0)
            | (part.p_flags & PF_X ? PROT_EXEC : 0);
        unsigned long before = part.p_vaddr % 4096;
        char *start = PLACE + part.p_vaddr - before;
        int how = MAP_PRIVATE | MAP_FIXED;
        if (mmap(start, before + part.p_memsz, can, how | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) fail("mmap");
        if (part.p_filesz
            && mmap(start, before + part.p_filesz, can, how, file, part.p_offset - before) == MAP_FAILED)
            fail("mmap");
    }
    close(file);
    return (Work *)(PLACE + header.e_entry);
}

// By its own CPU time: on a busy machine a turn takes longer, and has as many samples.
static long now(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#define IN(name)                                                                            \
    __attribute__((noinline, noclone)) unsigned long in_##name(Work *work, long until) {    \
        unsigned long sum = 0;                                                              \
        while (now() < until) sum += work(10000);                                           \
        return sum + 1;                                                                     \
    }
IN(a)
IN(b)

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    unsigned long sum = 0;
    for (int turn = 0; turn < atoi(argv[1]); turn++) {
        long until = now() + atoi(argv[2]);
        sum += turn % 2 ? in_b(map("./b.so"), until) : in_a(map("./a.so"), until);
    }
    return sum == 0;
}
