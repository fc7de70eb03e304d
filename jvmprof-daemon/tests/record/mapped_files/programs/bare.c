// A program without a C library and without frame information, with a thread: frame pointers lead to where both begin. It has
// more code than is analysed.
volatile unsigned long sink;
static char stack[65536] __attribute__((aligned(16)));

__asm__(".text\n.fill 0x200000, 1, 0x90");

__attribute__((noinline, noclone)) void busy(unsigned long n) {
    for (unsigned long i = 0; i < n; i++) sink += i;
}

__attribute__((noinline, noclone)) void in_thread(void) {
    for (;;) busy(1000000);
}

__attribute__((noinline, noclone, used)) void in_program(void) {
    for (;;) busy(1000000);
}

// clone(CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD, stack)
__attribute__((noinline, noclone)) long start(void (*function)(void)) {
    long result;
    register void *into __asm__("r9") = function;
    __asm__ volatile(
        "syscall\n"
        "test %%rax, %%rax\n"
        "jnz 1f\n"
        "xor %%ebp, %%ebp\n"
        "call *%%r9\n"
        "hlt\n"
        "1:"
        : "=a"(result)
        : "a"(56L), "D"(0x10f00L), "S"(stack + sizeof stack), "r"(into)
        : "rcx", "r11", "memory");
    return result;
}

__attribute__((used)) void begin(void) {
    start(in_thread);
    in_program();
}

// The kernel clears rbp.
__asm__(".globl _start\n_start: mov %rsp, %rdi\nand $-16, %rsp\ncall begin\nhlt");
