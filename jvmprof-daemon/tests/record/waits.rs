//! Waits of a native program by their causes, beside what it measures of its own.

use std::fs;
use std::path::Path;

use crate::support::waits::{KEEP_ALL, Measured, TOLERANCE, waited};
use crate::support::{compile, record_json, scratch};

/// One function for each way of waiting, each in a thread of its own, which writes how long its
/// calls took, how long it ran meanwhile, and how long it waited for a CPU.
const WAITS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double until;
static int pipe_ends[2], sockets[2], events;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;

static double ns(clockid_t clock) { struct timespec t; clock_gettime(clock, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
static void rest(long ms) { struct timespec t = { 0, ms * 1000000 }; nanosleep(&t, NULL); }

static void polls(void) { poll(NULL, 0, 9); }
static void selects(void) { struct timeval t = { 0, 8000 }; select(0, NULL, NULL, NULL, &t); }
static void polls_events(void) { struct epoll_event event; epoll_wait(events, &event, 1, 7); }
static void waits_for_a_futex(void) {
    static unsigned word;
    struct timespec t = { 0, 8000000 };
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0);
}
static void waits_for_a_condition(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 9000000;
    if (t.tv_nsec >= 1000000000) { t.tv_nsec -= 1000000000; t.tv_sec++; }
    pthread_mutex_lock(&mutex);
    pthread_cond_timedwait(&condition, &mutex, &t);
    pthread_mutex_unlock(&mutex);
}
static void sleeps(void) { rest(10); }
static void reads_a_pipe(void) { char byte; if (read(pipe_ends[0], &byte, 1) != 1) abort(); }
static void receives(void) { char byte; if (recv(sockets[0], &byte, 1, 0) != 1) abort(); }

struct job { const char *name; void (*wait)(void); double wall, cpu, delay; };
static struct job jobs[] = {
    { "polls", polls }, { "selects", selects }, { "polls_events", polls_events },
    { "waits_for_a_futex", waits_for_a_futex }, { "waits_for_a_condition", waits_for_a_condition },
    { "sleeps", sleeps }, { "reads_a_pipe", reads_a_pipe }, { "receives", receives },
};
enum { JOBS = sizeof jobs / sizeof *jobs };

/* The second number of the file: for how long the thread has waited on run queues. */
static double delay_of(int schedstat) {
    char text[64];
    ssize_t length = pread(schedstat, text, sizeof text - 1, 0);
    double delay;
    text[length < 0 ? 0 : length] = 0;
    if (sscanf(text, "%*f %lf", &delay) != 1) abort();
    return delay;
}
static void *work(void *argument) {
    struct job *job = argument;
    int schedstat = open("/proc/thread-self/schedstat", O_RDONLY);
    while (ns(CLOCK_MONOTONIC) < until) {
        double delay = delay_of(schedstat), cpu = ns(CLOCK_THREAD_CPUTIME_ID), began = ns(CLOCK_MONOTONIC);
        job->wait();
        job->wall += ns(CLOCK_MONOTONIC) - began;
        job->cpu += ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
        job->delay += delay_of(schedstat) - delay;
    }
    return NULL;
}
static double stolen(void) {
    double ticks = 0;
    FILE *file = fopen("/proc/stat", "r");
    if (fscanf(file, "cpu %*f %*f %*f %*f %*f %*f %*f %lf", &ticks) != 1) abort();
    fclose(file);
    return ticks * 1e7;
}
static void feed(void) { if (write(pipe_ends[1], "", 1) != 1 || send(sockets[1], "", 1, 0) != 1) abort(); }

int main(int argc, char **argv) {
    pthread_t threads[JOBS];
    double before = stolen();
    if (pipe(pipe_ends) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets)) abort();
    events = epoll_create1(0);
    until = ns(CLOCK_MONOTONIC) + 3e9;
    for (int i = 0; i < JOBS; i++) pthread_create(&threads[i], NULL, work, &jobs[i]);
    while (ns(CLOCK_MONOTONIC) < until) { rest(8); feed(); }
    rest(300);
    feed();
    for (int i = 0; i < JOBS; i++) pthread_join(threads[i], NULL);
    FILE *file = fopen(argv[1], "w");
    for (int i = 0; i < JOBS; i++) fprintf(file, "%s %.0f %.0f %.0f\n", jobs[i].name, jobs[i].wall, jobs[i].cpu, jobs[i].delay);
    fprintf(file, "stolen %.0f 0 0\n", stolen() - before);
    fclose(file);
    rest(500);
    return 0;
}
"#;

/// The functions and the causes of their waits.
const CAUSES: [(&str, &str); 8] = [
    ("polls", "poll"),
    ("selects", "poll"),
    ("polls_events", "poll"),
    ("waits_for_a_futex", "futex"),
    ("waits_for_a_condition", "futex"),
    ("sleeps", "sleep"),
    ("reads_a_pipe", "file"),
    ("receives", "socket"),
];

#[test]
fn waits_of_a_native_program_are_as_long_as_it_measures_by_their_system_calls() {
    let dir = scratch();
    let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    let program = text(&compile(dir.path(), "waits", WAITS, &["-O0", "-pthread"]));
    let [folded, sums] = ["x.folded", "sums"].map(|name| text(&dir.path().join(name)));
    let record = ["-e", "offcpu", "-o", &folded, "--", &program, &sums];
    let summary = record_json(&[&KEEP_ALL[..], &record].concat());
    let losses = &summary["losses"];
    let folded = fs::read_to_string(&folded).expect("written");
    let measured = fs::read_to_string(&sums).expect("the program has ended well");
    let measured = Measured::read(&measured);
    let stolen = measured["stolen"].wall;
    for (function, cause) in CAUSES {
        let of_causes = waited(&folded, function);
        let of = |cause: &str| of_causes.get(cause).copied().unwrap_or_default();
        let (own, measured) = (of(cause), measured[function]);
        let expected = measured.blocked();
        println!("{function}: {:.4} of {:.0} ms, {of_causes:?}", own / expected, expected / 1e6);
        assert!(expected > 5e8, "{function} has waited: {measured:?}");
        let least = (1.0 - TOLERANCE) * expected - stolen;
        assert!(
            (least..=(1.0 + TOLERANCE) * expected).contains(&own),
            "{function}: {own} of {measured:?}, {stolen} stolen, {of_causes:?}, {losses}"
        );
        let queued = (of("runnable") - measured.delay).abs();
        assert!(queued <= TOLERANCE * measured.wall, "{function}: {measured:?}, {of_causes:?}, {losses}");
        let others = of_causes.values().sum::<f64>() - own - of("runnable");
        assert!(others <= 0.01 * own, "{function}: {of_causes:?}, {losses}");
    }
}
