// Runs a program as a container's runtime does, in a root of its own with its own /proc: `contained ROOT PROGRAM`.
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char *program[] = {argv[argc - 1], NULL};
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount(argv[1], argv[1], NULL, MS_BIND, NULL) || chdir(argv[1]) || mount("proc", "proc", "proc", 0, NULL) ||
        syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH)) {
        perror("contained");
        return 1;
    }
    execv(program[0], program);
    perror(program[0]);
    return 1;
}
