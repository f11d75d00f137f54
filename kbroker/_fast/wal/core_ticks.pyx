"""Ticks that get idle cores out of a pause of the host while lone records come and go (decision 006)."""

from libc.stdint cimport int32_t, int64_t
from posix.time cimport nanosleep, timespec

import os
import threading

from kbroker._fast.base.atomic cimport add32, load64, swap32
from kbroker._fast.base.pthread cimport (
    monotonic_cond_init,
    monotonic_ns,
    pthread_cond_broadcast,
    pthread_cond_destroy,
    pthread_cond_wait,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    wait_precisely,
)

cdef extern from * nogil:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <sched.h>
    static void kb_stay_on_core(int core) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET(core, &cores);
        sched_setaffinity(0, sizeof cores, &cores);
    }
    """
    void stay_on_core "kb_stay_on_core"(int core)

CORES_MAX = 8  # what more of them would cost all the time is more than a late one costs now and then


cdef class CoreTicks:
    def __cinit__(self):
        self.threads = []
        pthread_mutex_init(&self.lock, NULL)
        monotonic_cond_init(&self.wanted)

    def __dealloc__(self):
        pthread_mutex_destroy(&self.lock)
        pthread_cond_destroy(&self.wanted)

    def start(self):
        """Starts the threads, which rest until they are wanted; none for one core or more than CORES_MAX."""
        cores = os.sched_getaffinity(0)
        if 1 < len(cores) <= CORES_MAX:
            for core in sorted(cores):
                thread = threading.Thread(target=self._run, args=(core,), name=f"core-tick-{core}", daemon=True)
                self.threads.append(thread)
                thread.start()

    def stop(self):
        """Ends the threads and waits for them."""
        swap32(&self.stopping, 1)
        with nogil:
            self.wake()
        for thread in self.threads:
            thread.join()

    def _run(self, int32_t core):
        with nogil:
            self.tick(core)

    cdef void tick(self, int32_t core) noexcept nogil:
        cdef timespec pause
        pause.tv_sec = 0
        pause.tv_nsec = TICK_NS
        wait_precisely()
        stay_on_core(core)
        while not load32(&self.stopping):
            if load64(&self.until_ns) > monotonic_ns():
                nanosleep(&pause, NULL)
            else:
                self.rest()

    cdef void rest(self) noexcept nogil:
        pthread_mutex_lock(&self.lock)
        add32(&self.asleep, 1)  # before the look at what is wanted: who wants ticks later sees it
        while not load32(&self.stopping) and load64(&self.until_ns) <= monotonic_ns():
            pthread_cond_wait(&self.wanted, &self.lock)
        add32(&self.asleep, -1)
        pthread_mutex_unlock(&self.lock)

    cdef void wake(self) noexcept nogil:
        pthread_mutex_lock(&self.lock)
        pthread_cond_broadcast(&self.wanted)
        pthread_mutex_unlock(&self.lock)
