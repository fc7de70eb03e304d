/* Runs code that it has written into memory of a device. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

static const unsigned char SPIN[] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0, 0, 0x40, 0, 0xff, 0xc9, 0x75, 0xfc, 0x5d, 0xc3};

__attribute__((noinline)) void caller(void (*code)(void)) {
    code();
    __asm__ volatile("" ::: "memory");
}

int main(void) {
    int device = open("/dev/zero", O_RDWR);
    void *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE, device, 0);
    if (code == MAP_FAILED)
        return 1;
    memcpy(code, SPIN, sizeof SPIN);
    for (;;)
        caller((void (*)(void))code);
}
