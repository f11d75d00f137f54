/* What the programs of the benchmarks share. Include it first: it asks for GNU's extensions. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static inline void fail(const char *what) {
        fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
        exit(1);
}

static inline int64_t now_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Returns the time, once record `index` of those sent at `rate` per second from `start` on is due. */
static inline int64_t wait_until_due(int64_t start, int64_t index, double rate) {
        int64_t due = start + (int64_t)((double)index * 1e9 / rate), now;
        while ((now = now_ns()) < due) {
                struct timespec pause = {0, due - now > 200000 ? due - now - 100000 : 20000};
                nanosleep(&pause, NULL);
        }
        return now;
}

/* Opens a file of `bytes`, past the page cache where possible, that is there in full: `piece`, aligned to a page, again
 * and again. */
static inline int filled_file(const char *path, int64_t bytes, const void *piece, int64_t piece_bytes) {
        int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
        if (file < 0)
                file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        for (int64_t at = 0; at < bytes; at += piece_bytes)
                if (pwrite(file, piece, (size_t)piece_bytes, at) != piece_bytes)
                        fail(path);
        fsync(file);
        return file;
}

/* For qsort. */
static inline int compare_doubles(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}
