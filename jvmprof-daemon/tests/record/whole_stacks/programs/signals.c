// A thread that does nothing but send itself signals.
#include <signal.h>

static volatile long handled;

static void handle(int signal) { handled += signal; }

__attribute__((noinline)) void work(void) {
    for (int i = 0; i < 20; i++) raise(SIGUSR1);
}

int main(void) {
    signal(SIGUSR1, handle);
    for (;;) work();
}
