// Works with a zero in rbp, in more code without frame information than is analysed.
volatile unsigned long sink;

__asm__(".text\n.fill 0x200000, 1, 0x90");

__attribute__((noinline, noclone)) unsigned long zeroed(unsigned long n) {
    unsigned long sum = 0;
    __asm__ volatile("push %%rbp; xor %%ebp, %%ebp; 1: add $1, %0; cmp %1, %0; jb 1b; pop %%rbp" : "+r"(sum) : "r"(n));
    return sum;
}

__attribute__((noinline, noclone)) unsigned long caller(unsigned long n) {
    unsigned long sum = zeroed(n);
    sink++;
    return sum + 1;
}

int main(void) {
    for (;;) caller(100000000);
}
