// Has the kernel's own threads of this process read, for ever: io_uring with each read handed to a worker.
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <fcntl.h>
#include <unistd.h>

enum { ENTRIES = 4, BYTES = 1 << 20 };
static char buffers[ENTRIES][BYTES];

int main(void) {
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    int ring = syscall(SYS_io_uring_setup, ENTRIES, &params);
    if (ring < 0) {
        perror("io_uring_setup");
        return 1;
    }
    char *submitted = mmap(0, params.sq_off.array + params.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    char *completed = mmap(0, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *entries = mmap(0, params.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    unsigned *tail = (unsigned *)(submitted + params.sq_off.tail), *order = (unsigned *)(submitted + params.sq_off.array);
    unsigned *head = (unsigned *)(completed + params.cq_off.head), *end = (unsigned *)(completed + params.cq_off.tail);
    int random = open("/dev/urandom", O_RDONLY);
    for (;;) {
        for (int i = 0; i < ENTRIES; i++) {
            memset(&entries[i], 0, sizeof *entries);
            entries[i].opcode = IORING_OP_READ;
            entries[i].flags = IOSQE_ASYNC;
            entries[i].fd = random;
            entries[i].addr = (unsigned long)buffers[i];
            entries[i].len = BYTES;
            order[(*tail + i) % params.sq_entries] = i;
        }
        __atomic_store_n(tail, *tail + ENTRIES, __ATOMIC_RELEASE);
        syscall(SYS_io_uring_enter, ring, ENTRIES, ENTRIES, IORING_ENTER_GETEVENTS, 0, 0);
        __atomic_store_n(head, __atomic_load_n(end, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    }
}
