/* The machine's part of a paced latency: what is left when the broker and its clients cost nothing.
 *
 *   latency_floor FILE RATE COUNT SIZE
 *
 * A thread sends COUNT records of SIZE bytes at RATE per second over loopback TCP; a second one writes what has arrived
 * to FILE (zero-filled first, past the page cache where possible), syncs it and passes it on over another connection; a
 * third one subtracts the send time that each record carries. The first tenth is dropped. Prints one line:
 * p50_ms p99_ms p999_ms.
 */
#include "program.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FILE_BYTES = 16 << 20, PAGE_BYTES = 4096, RECEIVE_BYTES = 65536 };

static int64_t count, size;
static double *latency_ms;
static int to_broker, at_broker, from_broker, at_consumer, file;

static void connection(int *one, int *other) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length           = sizeof(address);
        int listener               = socket(AF_INET, SOCK_STREAM, 0);
        *one                       = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
            getsockname(listener, (struct sockaddr *)&address, &length) ||
            connect(*one, (struct sockaddr *)&address, length) || (*other = accept(listener, NULL, NULL)) < 0)
                fail("loopback connection");
        setsockopt(*one, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        setsockopt(*other, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        close(listener);
}

static void send_all(int fd, const uint8_t *from, size_t n) {
        while (n) {
                ssize_t sent = send(fd, from, n, MSG_NOSIGNAL);
                if (sent <= 0)
                        fail("send");
                from += sent;
                n -= (size_t)sent;
        }
}

static void *serve(void *page) {
        static uint8_t records[RECEIVE_BYTES];
        int64_t position = 0;
        ssize_t n;
        while ((n = recv(at_broker, records, sizeof(records), 0)) > 0) {
                memcpy(page, records, n < PAGE_BYTES ? (size_t)n : PAGE_BYTES);
                if (pwrite(file, page, PAGE_BYTES, position) != PAGE_BYTES || fdatasync(file))
                        fail("write");
                position = (position + PAGE_BYTES) % FILE_BYTES;
                send_all(from_broker, records, (size_t)n);
        }
        return NULL;
}

static void *consume(void *record) {
        for (int64_t i = 0; i < count; i++) {
                int64_t sent;
                if (recv(at_consumer, record, (size_t)size, MSG_WAITALL) != size)
                        fail("receive");
                memcpy(&sent, record, sizeof(sent));
                latency_ms[i] = (double)(now_ns() - sent) / 1e6;
        }
        return NULL;
}

int main(int argc, char **argv) {
        if (argc != 5) {
                fprintf(stderr, "usage: latency_floor FILE RATE COUNT SIZE\n");
                return 2;
        }
        double rate = atof(argv[2]);
        count       = atoll(argv[3]);
        size        = atoll(argv[4]) < 8 ? 8 : atoll(argv[4]);
        latency_ms  = calloc((size_t)count, sizeof(double));
        uint8_t *record = calloc(1, (size_t)size), *received = calloc(1, (size_t)size), *page;
        if (posix_memalign((void **)&page, PAGE_BYTES, PAGE_BYTES))
                fail("memory");
        memset(page, 0, PAGE_BYTES);
        file = filled_file(argv[1], FILE_BYTES, page, PAGE_BYTES);
        connection(&to_broker, &at_broker);
        connection(&from_broker, &at_consumer);
        pthread_t broker, consumer;
        pthread_create(&broker, NULL, serve, page);
        pthread_create(&consumer, NULL, consume, received);

        int64_t start = now_ns();
        for (int64_t i = 0; i < count; i++) {
                int64_t now = wait_until_due(start, i, rate);
                memcpy(record, &now, sizeof(now));
                send_all(to_broker, record, (size_t)size);
        }
        pthread_join(consumer, NULL);
        unlink(argv[1]);

        int64_t skip = count / 10, n = count - skip;
        qsort(latency_ms + skip, (size_t)n, sizeof(double), compare_doubles);
        printf("%.3f %.3f %.3f\n", latency_ms[skip + n / 2], latency_ms[skip + n * 99 / 100],
               latency_ms[skip + n * 999 / 1000]);
        return 0;
}
