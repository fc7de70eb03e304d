/* Makes threads all the time, each of which does next to nothing. */
#include <pthread.h>

static void *work(void *argument) {
    return argument;
}

int main(void) {
    for (;;) {
        pthread_t threads[8];
        for (int i = 0; i < 8; i++)
            if (pthread_create(threads + i, NULL, work, NULL))
                return 1;
        for (int i = 0; i < 8; i++)
            pthread_join(threads[i], NULL);
    }
}
