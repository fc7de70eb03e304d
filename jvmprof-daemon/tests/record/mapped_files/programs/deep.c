// Three functions that call each other for ever; -DMUCH: in a program with two megabytes of code.
volatile unsigned long sink;

#ifdef MUCH
__asm__(".text\n.fill 0x200000, 1, 0x90");
#endif

__attribute__((noinline, noclone)) unsigned long leaf(unsigned long n) {
    unsigned long sum = 0;
    for (unsigned long i = 0; i < n; i++) {
        sum += i * sink;
        sink = sum;
    }
    return sum;
}

__attribute__((noinline, noclone)) unsigned long middle(unsigned long n) {
    unsigned long sum = leaf(n);
    sink++;
    return sum + 1;
}

__attribute__((noinline, noclone)) unsigned long outer(unsigned long n) {
    unsigned long sum = middle(n);
    sink++;
    return sum + 2;
}

int main(void) {
    for (;;) outer(1000000);
}
