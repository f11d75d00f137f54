# Mutexes and condition variables of POSIX threads. No mutex is held while taking the GIL.

from posix.time cimport timespec

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_mutex_destroy(pthread_mutex_t*)
    int pthread_cond_init(pthread_cond_t*, void*)
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*)
    int pthread_cond_timedwait(pthread_cond_t*, pthread_mutex_t*, timespec*)
    int pthread_cond_signal(pthread_cond_t*)
    int pthread_cond_broadcast(pthread_cond_t*)
    int pthread_cond_destroy(pthread_cond_t*)

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <sys/prctl.h>
    #include <time.h>
    static int kb_monotonic_cond_init(pthread_cond_t *cond) {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        return pthread_cond_init(cond, &attributes);
    }
    static long long kb_monotonic_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    static void kb_deadline(struct timespec *until, long long ns) {
        ns += kb_monotonic_ns();
        until->tv_sec = ns / 1000000000;
        until->tv_nsec = ns % 1000000000;
    }
    static int kb_is_locked(pthread_mutex_t *mutex) {
        if (pthread_mutex_trylock(mutex)) return 1;
        pthread_mutex_unlock(mutex);
        return 0;
    }
    static void kb_wait_precisely(void) { prctl(PR_SET_TIMERSLACK, 1UL); }
    static void kb_sleep_until(long long ns) {
        struct timespec until = {ns / 1000000000, ns % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
            ;
    }
    """
    int monotonic_cond_init "kb_monotonic_cond_init"(pthread_cond_t*)     # its timed waits end at what `deadline` gives
    long long monotonic_ns "kb_monotonic_ns"()
    void deadline "kb_deadline"(timespec* until, long long ns)            # so many nanoseconds from now
    void sleep_until "kb_sleep_until"(long long ns)                       # of monotonic_ns
    bint is_locked "kb_is_locked"(pthread_mutex_t* mutex)                 # by any thread; for invariants
    void wait_precisely "kb_wait_precisely"()   # timed waits of this thread end within 1 us of their time, not 50
