// The wall clock of a server under test: ahead of this machine's by the nanoseconds in the file $RLOCK_AHEAD.
// `make failovers VARIANT=skewed` preloads it into servers. The monotonic clock stays right. It calls nothing
// that could allocate memory: jemalloc asks for the time during its first allocation, and libfaketime then
// waits for itself.
//
// The module sets its timer without libc, by the machine's clock. So where this clock is ahead, it is late with
// what it does by itself when a lease ends; whether one has ended, it asks this clock.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t SECOND_NS = 1000000000;

static int64_t ahead_ns(void) {
    static const volatile int64_t *ahead;
    if (!ahead) {
        const char *path = getenv("RLOCK_AHEAD");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *place = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
        if (place == MAP_FAILED) abort(); // a right clock would show nothing
        close(file);
        ahead = place;
    }
    return *ahead;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int code = (int)syscall(SYS_clock_gettime, clock, time);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = time->tv_sec * SECOND_NS + time->tv_nsec + ahead_ns();
        *time = (struct timespec){ns / SECOND_NS, ns % SECOND_NS};
    }
    return code;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *time = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}

// Valkey 9 lets a module look for functions in its own libraries first: it would get the machine's clock.
void *dlopen(const char *path, int flags) {
    void *(*open_library)(const char *, int);
    *(void **)&open_library = dlsym(RTLD_NEXT, "dlopen");
    return open_library(path, flags & ~RTLD_DEEPBIND);
}
