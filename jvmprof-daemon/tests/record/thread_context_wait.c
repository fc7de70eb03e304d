// A thread whose request waits for ever, beside one that sleeps again and again.
#include <pthread.h>
#include <unistd.h>

void attach(int number, int by_pointer);
void publish(const char *payload_hex);

__attribute__((noinline)) void request_3(void) {
    attach(3, 0);
    for (;;) pause();
}

static void *run(void *none) {
    request_3();
    return none;
}

int main(int argc, char **argv) {
    pthread_t thread;
    publish(argv[1]);
    pthread_create(&thread, 0, run, 0);
    for (;;) usleep(10000);
}
