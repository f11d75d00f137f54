/* The log of a broker that costs nothing beside what every broker has to do: what its producers send goes from the
 * socket to memory, and from there to a file as large, which is synced; it is received only as far as another process,
 * which shares two counters with it, has stored what was in its place. `log_event` can be read when more is written.
 */
#include "program.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LOG_BLOCK_BYTES = 4096, LOG_PIECE_BYTES = 1 << 20, LOG_PIECES_MAX = 4, LOG_BEHIND_BYTES = 64 << 20 };

struct log_counts {
        _Atomic int64_t received, stored; /* bytes of records; `stored` is the other process's */
};

static struct log_counts *log_counts; /* NULL: no log is kept */
static _Atomic int64_t log_written;
static int64_t log_bytes; /* of the file and of the memory: what is not stored has to be there */
static int log_file, log_event;
static uint8_t *log_memory; /* the last bytes received, at their position modulo its size */

static void log_pause(void) {
        nanosleep(&(struct timespec){0, 500000}, NULL);
}

/* Writes what has been received, once it is a piece or has waited for one pause. */
static void *log_write(void *nothing) {
        int64_t at = 0;
        for (;;) {
                if (log_counts->received - log_written < LOG_PIECE_BYTES)
                        log_pause();
                int64_t n = log_counts->received - log_written, most = LOG_PIECES_MAX * LOG_PIECE_BYTES;
                if (!n)
                        continue;
                if (at == log_bytes)
                        at = 0;
                most          = most < log_bytes - at ? most : log_bytes - at;
                n             = n < most ? n : most;
                int64_t whole = (n + LOG_BLOCK_BYTES - 1) / LOG_BLOCK_BYTES * LOG_BLOCK_BYTES;
                int64_t from  = log_written % log_bytes / LOG_BLOCK_BYTES * LOG_BLOCK_BYTES;
                from          = from < log_bytes - whole ? from : log_bytes - whole;
                if (pwrite(log_file, log_memory + from, (size_t)whole, at) != whole || fdatasync(log_file))
                        fail("log");
                at += whole;
                log_written += n;
                if (eventfd_write(log_event, 1))
                        fail("log");
        }
        return nothing;
}

/* `path` is overwritten again and again; the counters are in `counts`. */
static void log_open(const char *path, const char *counts, int64_t bytes) {
        pthread_t thread;
        log_bytes  = bytes / LOG_PIECE_BYTES * LOG_PIECE_BYTES;
        log_memory = mmap(NULL, (size_t)log_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (log_bytes < LOG_PIECES_MAX * LOG_PIECE_BYTES || log_memory == MAP_FAILED)
                fail("log");
        memset(log_memory, 1, (size_t)log_bytes);
        log_file   = filled_file(path, log_bytes, log_memory, LOG_PIECE_BYTES);
        int shared = open(counts, O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (shared < 0 || ftruncate(shared, sizeof(*log_counts)))
                fail(counts);
        log_counts = mmap(NULL, sizeof(*log_counts), PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
        log_event  = eventfd(0, EFD_NONBLOCK);
        if (log_counts == MAP_FAILED || log_event < 0 || (errno = pthread_create(&thread, NULL, log_write, NULL)))
                fail("log");
}

static void log_received(size_t bytes) {
        log_counts->received += (int64_t)bytes;
}

/* Where the next of `most` bytes go; less than so many where the memory ends. */
static uint8_t *log_place(size_t *most) {
        size_t at = (size_t)(log_counts->received % log_bytes), end = (size_t)log_bytes;
        *most     = *most < end - at ? *most : end - at;
        return log_memory + at;
}

/* Returns when more may be received. */
static void log_wait_for_room(void) {
        while (log_counts->received - log_counts->stored > log_bytes ||
               log_counts->received - log_written > LOG_BEHIND_BYTES)
                log_pause();
}
