// One of two libraries that need no linker, whose code differs in its frames: -DNAME=a -DFRAME=40.
#define PASTE(x, y) x##_##y
#define NAMED(x, y) PASTE(x, y)

static volatile unsigned long sink;

__attribute__((noinline, noclone, visibility("hidden"))) unsigned long NAMED(leaf, NAME)(unsigned long n) {
    volatile char frame[FRAME];
    for (unsigned long i = 0; i < n; i++) {
        frame[i % FRAME] = i;
        sink += frame[i * 7 % FRAME];
    }
    return sink;
}

__attribute__((noinline, noclone, visibility("hidden"))) unsigned long NAMED(middle, NAME)(unsigned long n) {
    volatile char frame[FRAME];
    frame[n % FRAME] = 1;
    return NAMED(leaf, NAME)(n) + frame[n % FRAME];
}

unsigned long work(unsigned long n) {
    return NAMED(middle, NAME)(n) + 1;
}
