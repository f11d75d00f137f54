/* Load on many connections, straight on the protocol, so that the client costs little: one thread, epoll.
 *
 *   wire_load produce PORT TOPIC PARTITIONS CONNECTIONS IN_FLIGHT COUNT SIZE
 *       One record of SIZE bytes per Produce request (version 7, acks=all), IN_FLIGHT per connection; connection i
 *       writes to partition i % PARTITIONS. Prints: requests_per_second p50_ms p99_ms p999_ms max_ms.
 *   wire_load park PORT TOPIC PARTITIONS CONNECTIONS EACH WAIT_MS
 *       Each connection asks with Fetch (version 4) for EACH partitions at offset 0 and waits up to WAIT_MS for the
 *       answer, again and again. Prints "parked" when all have asked; ends when standard input does, and prints how
 *       many answers came.
 *
 * Brokers on 127.0.0.1 only. Exit code 1 on any error, with a line on standard error.
 */
#include "program.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_MAX = 65536, IN_FLIGHT_MAX = 64 };

struct connection {
        int fd, flying;
        int64_t sent_ns[IN_FLIGHT_MAX]; /* by number of the request, modulo */
        int64_t sent, answered;
        uint8_t *request, *answer;
        size_t request_bytes, answer_have;
};

static struct connection *connections;
static const char *topic;
static int port, partitions, connection_count;

static uint32_t crc32c(const uint8_t *p, size_t n) {
        uint32_t crc = ~0u;
        while (n--) {
                crc ^= *p++;
                for (int bit = 0; bit < 8; bit++)
                        crc = crc >> 1 ^ (0x82F63B78u & -(crc & 1));
        }
        return ~crc;
}

static uint8_t *put(uint8_t *p, int64_t value, int bytes) {
        for (int i = bytes - 1; i >= 0; i--)
                *p++ = (uint8_t)(value >> 8 * i);
        return p;
}

static uint8_t *put_string(uint8_t *p, const char *text) {
        size_t n = strlen(text);
        p        = put(p, (int64_t)n, 2);
        memcpy(p, text, n);
        return p + n;
}

static uint8_t *put_varint(uint8_t *p, int64_t value) {
        uint64_t zigzag = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
        for (; zigzag >= 128; zigzag >>= 7)
                *p++ = (uint8_t)(zigzag | 128);
        *p++ = (uint8_t)zigzag;
        return p;
}

static uint8_t *put_header(uint8_t *p, int api_key, int version) {
        p = put(p, api_key, 2);
        p = put(p, version, 2);
        p = put(p, 0, 4); /* correlation id: answers come in order */
        return put_string(p, "wire_load");
}

static uint8_t *put_batch(uint8_t *p, int size) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        int64_t now_ms = t.tv_sec * 1000LL + t.tv_nsec / 1000000;
        uint8_t body[64], *b = body;
        b = put_varint(put_varint(put(b, 0, 1), 0), 0); /* attributes, timestamp delta, offset delta */
        b = put_varint(put_varint(b, -1), size);
        size_t record_bytes = (size_t)(b - body) + (size_t)size + 1; /* and no headers */
        p = put(p, 0, 8);
        uint8_t *length = p;
        p = put(p, 0, 4);
        p = put(put(p, -1, 4), 2, 1); /* leader epoch, magic */
        uint8_t *crc = p;
        p = put(p, 0, 4);
        p = put(put(p, 0, 2), 0, 4); /* attributes, last offset delta */
        p = put(put(p, now_ms, 8), now_ms, 8);
        p = put(put(put(p, -1, 8), -1, 2), -1, 4); /* no producer */
        p = put(p, 1, 4);
        p = put_varint(p, (int64_t)record_bytes);
        memcpy(p, body, (size_t)(b - body));
        p += b - body;
        memset(p, 'x', (size_t)size);
        p += size;
        p = put_varint(p, 0);
        put(length, p - length - 4, 4);
        put(crc, crc32c(crc + 4, (size_t)(p - crc - 4)), 4);
        return p;
}

static void build_produce(struct connection *c, int number, int size) {
        c->request = malloc((size_t)size + 512);
        uint8_t *p = put_header(c->request + 4, 0, 7);
        p = put(p, -1, 2); /* no transactional id */
        p = put(put(p, -1, 2), 30000, 4);
        p = put_string(put(p, 1, 4), topic);
        p = put(put(p, 1, 4), number % partitions, 4);
        uint8_t *length = p;
        p = put_batch(p + 4, size);
        put(length, p - length - 4, 4);
        c->request_bytes = (size_t)(p - c->request);
        put(c->request, (int64_t)c->request_bytes - 4, 4);
}

static void build_fetch(struct connection *c, int number, int each, int wait_ms) {
        c->request = malloc(512 + (size_t)each * 16);
        uint8_t *p = put_header(c->request + 4, 1, 4);
        p = put(put(put(p, -1, 4), wait_ms, 4), 1, 4); /* replica id, max wait, min bytes */
        p = put(put(p, 1 << 20, 4), 0, 1);             /* max bytes, isolation level */
        p = put_string(put(p, 1, 4), topic);
        p = put(p, each, 4);
        for (int i = 0; i < each; i++)
                p = put(put(put(p, (number * (int64_t)each + i) % partitions, 4), 0, 8), 1 << 20, 4);
        c->request_bytes = (size_t)(p - c->request);
        put(c->request, (int64_t)c->request_bytes - 4, 4);
}

static void open_connection(struct connection *c) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof(address)))
                fail("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        c->answer = malloc(ANSWER_MAX);
}

static void send_request(struct connection *c) {
        c->sent_ns[c->sent++ % IN_FLIGHT_MAX] = now_ns();
        c->flying++;
        for (size_t done = 0; done < c->request_bytes;) { /* small, and bounded in flight: blocking is short */
                ssize_t n = send(c->fd, c->request + done, c->request_bytes - done, MSG_NOSIGNAL);
                if (n < 0 && errno != EINTR)
                        fail("send");
                done += n > 0 ? (size_t)n : 0;
        }
}

static int64_t big_endian(const uint8_t *p, int bytes) {
        int64_t value = (int8_t)p[0];
        for (int i = 1; i < bytes; i++)
                value = value << 8 | p[i];
        return value;
}

/* Reads what there is; calls `answered` for each whole answer. */
static void receive(struct connection *c, void (*answered)(struct connection *, const uint8_t *, int64_t)) {
        ssize_t n = recv(c->fd, c->answer + c->answer_have, ANSWER_MAX - c->answer_have, MSG_DONTWAIT);
        if (n == 0) {
                errno = ECONNRESET;
                fail("the broker closed a connection");
        }
        if (n < 0) {
                if (errno == EAGAIN || errno == EINTR)
                        return;
                fail("recv");
        }
        c->answer_have += (size_t)n;
        size_t used = 0;
        while (c->answer_have - used >= 4) {
                int64_t length = big_endian(c->answer + used, 4);
                if (length < 4 || length > ANSWER_MAX - 4) {
                        errno = EMSGSIZE;
                        fail("answer");
                }
                if (c->answer_have - used < (size_t)length + 4)
                        break;
                c->flying--;
                answered(c, c->answer + used + 8, length - 4);
                used += (size_t)length + 4;
        }
        memmove(c->answer, c->answer + used, c->answer_have - used);
        c->answer_have -= used;
}

static double *latency_ms;
static int64_t latencies, wanted, started, answers;

static int64_t produce_error(const uint8_t *body, int64_t length) {
        int64_t error_at = 4 + 2 + (int64_t)strlen(topic) + 4 + 4;
        return length >= error_at + 2 ? big_endian(body + error_at, 2) : -1;
}

static int led; /* whether the answer to the latest request of await_leader was good */

static void leader_answered(struct connection *c, const uint8_t *body, int64_t length) {
        int64_t error = produce_error(body, length);
        c->answered++;
        led = error == 0;
        if (error && error != 3 && error != 6) { /* UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER */
                fprintf(stderr, "wire_load: produce answered with error %lld\n", (long long)error);
                exit(1);
        }
}

/* A new topic's partitions may take a moment to be led. */
static void await_leader(struct connection *c) {
        int64_t give_up = now_ns() + 10000000000LL;
        for (led = 0; !led;) {
                for (send_request(c); c->flying;) {
                        struct pollfd readable = {.fd = c->fd, .events = POLLIN};
                        if (now_ns() > give_up) {
                                errno = ETIMEDOUT;
                                fail("a partition without a leader");
                        }
                        poll(&readable, 1, 1000);
                        receive(c, leader_answered);
                }
                if (!led)
                        usleep(20000);
        }
}

static void produced(struct connection *c, const uint8_t *body, int64_t length) {
        int64_t error = produce_error(body, length);
        if (error) {
                fprintf(stderr, "wire_load: produce answered with error %lld\n", (long long)error);
                exit(1);
        }
        latency_ms[latencies++] = (double)(now_ns() - c->sent_ns[c->answered++ % IN_FLIGHT_MAX]) / 1e6;
        if (started < wanted) {
                started++;
                send_request(c);
        }
}

static void fetched(struct connection *c, const uint8_t *body, int64_t length) {
        (void)body, (void)length;
        answers++;
        send_request(c);
}

static int watch_all(void) {
        int poller = epoll_create1(0);
        for (int i = 0; i < connection_count; i++) {
                struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
                if (epoll_ctl(poller, EPOLL_CTL_ADD, connections[i].fd, &event))
                        fail("epoll_ctl");
        }
        return poller;
}

static void run_produce(int in_flight, int64_t count) {
        struct epoll_event events[256];
        int poller = watch_all();
        latency_ms = calloc((size_t)count, sizeof(double));
        wanted     = count;
        for (int i = 0; i < connection_count; i++)
                await_leader(&connections[i]);
        int64_t begin = now_ns();
        for (int round = 0; round < in_flight; round++)
                for (int i = 0; i < connection_count && started < wanted; i++, started++)
                        send_request(&connections[i]);
        while (latencies < wanted) {
                int ready = epoll_wait(poller, events, 256, 30000);
                if (ready == 0) {
                        errno = ETIMEDOUT;
                        fail("no answer for 30 s");
                }
                for (int i = 0; i < ready; i++)
                        receive(events[i].data.ptr, produced);
        }
        double seconds = (double)(now_ns() - begin) / 1e9;
        int64_t skip = count / 10, n = count - skip;
        qsort(latency_ms + skip, (size_t)n, sizeof(double), compare_doubles);
        double *sorted = latency_ms + skip;
        printf("%.0f %.3f %.3f %.3f %.3f\n", (double)count / seconds, sorted[n / 2], sorted[n * 99 / 100],
               sorted[n * 999 / 1000], sorted[n - 1]);
}

static void run_park(void) {
        struct epoll_event events[256];
        int poller               = watch_all();
        struct epoll_event input = {.events = EPOLLIN, .data.ptr = NULL};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &input))
                fail("standard input");
        for (int i = 0; i < connection_count; i++)
                send_request(&connections[i]);
        printf("parked\n");
        fflush(stdout);
        for (;;) {
                int ready = epoll_wait(poller, events, 256, -1);
                for (int i = 0; i < ready; i++) {
                        if (!events[i].data.ptr) {
                                printf("%lld\n", (long long)answers);
                                return;
                        }
                        receive(events[i].data.ptr, fetched);
                }
        }
}

int main(int argc, char **argv) {
        int produce = argc == 9 && !strcmp(argv[1], "produce"), park = argc == 8 && !strcmp(argv[1], "park");
        if (!produce && !park) {
                fprintf(stderr, "usage: wire_load produce PORT TOPIC PARTITIONS CONNECTIONS IN_FLIGHT COUNT SIZE\n"
                                "       wire_load park PORT TOPIC PARTITIONS CONNECTIONS EACH WAIT_MS\n");
                return 2;
        }
        port             = atoi(argv[2]);
        topic            = argv[3];
        partitions       = atoi(argv[4]);
        connection_count = atoi(argv[5]);
        if (produce && (atoi(argv[6]) < 1 || atoi(argv[6]) > IN_FLIGHT_MAX || atoi(argv[8]) > 1 << 20))
                return 2;
        struct rlimit files;
        getrlimit(RLIMIT_NOFILE, &files);
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
        connections = calloc((size_t)connection_count, sizeof(*connections));
        for (int i = 0; i < connection_count; i++) {
                open_connection(&connections[i]);
                if (produce)
                        build_produce(&connections[i], i, atoi(argv[8]));
                else
                        build_fetch(&connections[i], i, atoi(argv[6]), atoi(argv[7]));
        }
        if (produce)
                run_produce(atoi(argv[6]), atoll(argv[7]));
        else
                run_park();
        return 0;
}
