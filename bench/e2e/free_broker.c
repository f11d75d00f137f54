/* A broker that costs next to nothing: what a client reaches against it is the client's own ceiling.
 *
 *   free_broker PORT [ANSWER_BYTES [COPIED_BYTES]]
 *   free_broker PORT tail [FILE]
 *   free_broker PORT log FILE COUNTS BYTES [FILE]
 *       Listens on 127.0.0.1:PORT until it is killed; one thread. A topic exists as soon as it is named and has as
 *       many partitions as the number says that its name ends with ("bench-3-12": 12).
 *
 * Produce (versions 3-7) is acknowledged when its last byte has arrived; the records are dropped inside the kernel,
 * neither copied nor looked at. Only a batch larger than any before it in its topic is kept. Fetch (version 4) answers
 * with that batch again and again, at once, its base offset counted on: every partition is such a log without an end.
 * An answer carries ANSWER_BYTES (1 MiB unless given) in one system call, from one piece of memory that stays in the
 * cache; with COPIED_BYTES from so many bytes of copies, one after another, since no broker's records are in the cache.
 * With `tail` a topic has one partition and that an end: records are kept, and a Fetch is answered as soon as there is
 * something behind its offset, which one consumer may wait for; with a FILE not before what has come is in it and
 * synced, one page for each receive.
 * With `log` it is what a broker has to write and to store that costs nothing beside that: records are received into
 * memory and written from there to FILE and synced before they are acknowledged, and no more than BYTES received of
 * which another process has not said in COUNTS that as many are stored (free_log.h). With a second FILE a topic of one
 * partition has an end, as with `tail`, and is not in the log.
 * Beside them ApiVersions, Metadata (4), ListOffsets (1) and InitProducerId (0-1), as far as producers and
 * consumers without a group ask.
 *
 * For the benchmarks alone: it trusts its clients, and ends with a line on standard error when it cannot follow them.
 */
#include "free_log.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PRODUCE = 0, FETCH = 1, LIST_OFFSETS = 2, METADATA = 3, API_VERSIONS = 18, INIT_PRODUCER_ID = 22 };
enum { UNSUPPORTED_VERSION = 35 };
enum { IN_BYTES = 16384, OUT_BYTES = 65536, TOPICS_MAX = 256, PARTITIONS_MAX = 200 };
enum { CONNECTIONS_MAX = 4096, HELD_MAX = 64 };
enum { TAIL_FILE_BYTES = 16 << 20 };
enum { BATCHES_MAX = 400, PIECES_MAX = 1024, BASE_OFFSET_BYTES = 8 }; /* of one answer to a Fetch */

struct stored { /* what a producer sent, with `tail` */
        uint8_t *bytes;
        size_t length;
        int64_t end; /* the offset behind its last record */
};

struct topic {
        char *name;
        int partitions;
        int64_t records; /* in the batch */
        uint8_t *batch;
        size_t batch_bytes;
        uint8_t *copies; /* of the batch; NULL: none yet */
        size_t copy_count;
        struct stored *stored; /* with `tail`, by offset */
        size_t stored_count, stored_room;
        struct connection *waiter; /* for what is stored next */
        int grew;                  /* since its waiter was looked at */
};

struct held { /* answers that wait until the log has so many bytes */
        int64_t log_end;
        size_t filled; /* where they end in `out` */
};

enum expected { A_REQUEST, A_TOPIC, A_PARTITION, RECORDS };

struct connection {
        int fd;
        enum expected next;
        int topics, partitions, acks; /* to come, of the Produce that is being received */
        int logs;                     /* what it sends is in the log */
        int16_t version;
        struct topic *topic;
        size_t records, kept; /* record bytes to come; bytes of them that have been kept */
        uint8_t *keep;        /* where they go; NULL: nowhere */
        size_t keep_bytes;
        int64_t fetch_id, fetch_offset; /* of the Fetch that waits */
        size_t have, answer, filled; /* bytes in `in`; where in `out` the last answer begins; bytes in `out` */
        struct held held[HELD_MAX]; /* with a log: all of `out`, in order */
        int held_count;
        uint8_t in[IN_BYTES], out[OUT_BYTES];
};

/* Reads a request; `short_of` when it ended before what was wanted. */
struct cursor {
        const uint8_t *at, *end;
        int short_of;
};

static struct topic topics[TOPICS_MAX];
static int topic_count, port;
static size_t answer_bytes = 1 << 20, copied_bytes;
static int tail, tail_file;
static void *tail_page; /* NULL: nothing is synced */
static struct connection *connections[CONNECTIONS_MAX]; /* by their descriptors */

static int64_t get(struct cursor *c, int bytes) {
        if (c->end - c->at < bytes) {
                c->short_of = 1;
                return 0;
        }
        int64_t value = (int8_t)*c->at++;
        while (--bytes)
                value = value << 8 | *c->at++;
        return value;
}

static const uint8_t *get_string(struct cursor *c, int *length) {
        *length = (int)get(c, 2);
        if (*length < 0)
                *length = 0;
        if (c->end - c->at < *length) {
                c->short_of = 1;
                *length     = 0;
        }
        c->at += *length;
        return c->at - *length;
}

static void put(struct connection *c, int64_t value, int bytes) {
        if (c->filled + 8 > OUT_BYTES)
                fail("answers do not fit");
        for (int i = bytes - 1; i >= 0; i--)
                c->out[c->filled++] = (uint8_t)(value >> 8 * i);
}

static void put_string(struct connection *c, const char *text) {
        size_t length = strlen(text);
        put(c, (int64_t)length, 2);
        if (c->filled + length > OUT_BYTES)
                fail("answers do not fit");
        memcpy(c->out + c->filled, text, length);
        c->filled += length;
}

static void put_later(uint8_t *at, int64_t value, int bytes) {
        for (int i = bytes - 1; i >= 0; i--)
                *at++ = (uint8_t)(value >> 8 * i);
}

static void begin_answer(struct connection *c, int64_t correlation_id) {
        c->answer = c->filled;
        put(c, 0, 4);
        put(c, correlation_id, 4);
}

static void end_answer(struct connection *c, size_t more) {
        put_later(c->out + c->answer, (int64_t)(c->filled - c->answer - 4 + more), 4);
}

static struct topic *find_topic(const uint8_t *name, int length) {
        for (int i = 0; i < topic_count; i++)
                if (strlen(topics[i].name) == (size_t)length && !memcmp(topics[i].name, name, (size_t)length))
                        return &topics[i];
        if (topic_count == TOPICS_MAX)
                fail("too many topics");
        struct topic *t = &topics[topic_count++];
        t->name         = strndup((const char *)name, (size_t)length);
        const char *end = strrchr(t->name, '-');
        t->partitions   = end ? atoi(end + 1) : 1;
        if (t->partitions < 1 || t->partitions > PARTITIONS_MAX) {
                errno = EDOM;
                fail("partitions by the topic's name");
        }
        return t;
}

static void send_all(int fd, struct iovec *pieces, size_t count) {
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
        while (message.msg_iovlen) {
                ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
                if (n < 0 && errno != EINTR)
                        return; /* the client is gone, which the next receive tells */
                while (n > 0 && message.msg_iovlen) {
                        size_t taken = (size_t)n < message.msg_iov->iov_len ? (size_t)n : message.msg_iov->iov_len;
                        message.msg_iov->iov_base = (uint8_t *)message.msg_iov->iov_base + taken;
                        message.msg_iov->iov_len -= taken;
                        n -= (ssize_t)taken;
                        if (!message.msg_iov->iov_len)
                                message.msg_iov++, message.msg_iovlen--;
                }
        }
}

static void send_answers(struct connection *c, size_t length) {
        struct iovec answers = {.iov_base = c->out, .iov_len = length};
        if (length)
                send_all(c->fd, &answers, 1);
        c->filled -= length;
        c->answer -= length;
        memmove(c->out, c->out + length, c->filled);
}

/* Sends the answers that waited for what the log has now. */
static void send_held(struct connection *c) {
        int64_t written = log_written;
        size_t length   = 0;
        int count       = 0;
        while (count < c->held_count && c->held[count].log_end <= written)
                length = c->held[count++].filled;
        c->held_count -= count;
        for (int i = 0; i < c->held_count; i++)
                c->held[i] = (struct held){c->held[i + count].log_end, c->held[i + count].filled - length};
        send_answers(c, length);
}

/* Sends all answers, or keeps them until the log has what has been received. */
static void flush(struct connection *c) {
        if (!c->logs) {
                send_answers(c, c->filled);
                return;
        }
        if (c->held_count == HELD_MAX)
                c->held_count--;
        c->held[c->held_count++] = (struct held){log_counts->received, c->filled};
        send_held(c);
        for (; c->filled > OUT_BYTES / 2; send_held(c))
                log_pause();
}

static void answer_api_versions(struct connection *c, int version) {
        static const int served[][3] = {{PRODUCE, 3, 7},  {FETCH, 4, 4},        {LIST_OFFSETS, 1, 1},
                                        {METADATA, 4, 4}, {API_VERSIONS, 0, 0}, {INIT_PRODUCER_ID, 0, 1}};
        put(c, version ? UNSUPPORTED_VERSION : 0, 2); /* a client that asked with a later one asks again with 0 */
        put(c, sizeof(served) / sizeof(*served), 4);
        for (size_t i = 0; i < sizeof(served) / sizeof(*served); i++)
                for (int j = 0; j < 3; j++)
                        put(c, served[i][j], 2);
}

static void answer_metadata(struct connection *c, struct cursor *r) {
        int64_t count = get(r, 4), named = count < 0 ? topic_count : count;
        put(c, 0, 4);
        put(c, 1, 4); /* one broker: node 0, here */
        put(c, 0, 4);
        put_string(c, "127.0.0.1");
        put(c, port, 4);
        put(c, -1, 2);
        put_string(c, "free");
        put(c, 0, 4);
        put(c, named, 4);
        for (int64_t i = 0; i < named && !r->short_of; i++) {
                int length;
                const uint8_t *name = count < 0 ? NULL : get_string(r, &length);
                struct topic *t     = count < 0 ? &topics[i] : find_topic(name, length);
                put(c, 0, 2);
                put_string(c, t->name);
                put(c, 0, 1);
                put(c, t->partitions, 4);
                for (int partition = 0; partition < t->partitions; partition++) {
                        put(c, 0, 2);
                        put(c, partition, 4);
                        put(c, 0, 4); /* leader */
                        for (int list = 0; list < 2; list++)
                                put(c, 1, 4), put(c, 0, 4); /* replicas; those in sync */
                }
        }
}

static void answer_list_offsets(struct connection *c, struct cursor *r) {
        int length;
        get(r, 4);
        int64_t count = get(r, 4);
        put(c, count, 4);
        for (int64_t i = 0; i < count && !r->short_of; i++) {
                const uint8_t *name = get_string(r, &length);
                put_string(c, find_topic(name, length)->name);
                int64_t partitions = get(r, 4);
                put(c, partitions, 4);
                for (int64_t j = 0; j < partitions && !r->short_of; j++) {
                        put(c, get(r, 4), 4);
                        get(r, 8);
                        put(c, 0, 2);
                        put(c, -1, 8);
                        put(c, 0, 8);
                }
        }
}

static void answer_init_producer_id(struct connection *c) {
        static int64_t producer_id;
        put(c, 0, 4);
        put(c, 0, 2);
        put(c, ++producer_id, 8);
        put(c, 0, 2);
}

static int64_t batch_records(const uint8_t *batch) { /* by its last offset delta */
        return get(&(struct cursor){batch + 23, batch + 27, 0}, 4) + 1;
}

/* The batch as the given one of a partition. */
static const uint8_t *batch_at(struct topic *t, int64_t partition, int64_t number) {
        if (!t->copies) {
                t->copy_count = copied_bytes > t->batch_bytes ? copied_bytes / t->batch_bytes : 1;
                t->copies     = malloc(t->copy_count * t->batch_bytes);
                if (!t->copies)
                        fail("malloc");
                for (size_t i = 0; i < t->copy_count; i++)
                        memcpy(t->copies + i * t->batch_bytes, t->batch, t->batch_bytes);
        }
        size_t first = t->copy_count * (size_t)partition / (size_t)t->partitions;
        return t->copies + (first + (size_t)number) % t->copy_count * t->batch_bytes;
}

/* The most bytes that the client wants. Its topics follow. */
static size_t get_fetch_limit(struct cursor *r) {
        get(r, 4 + 4);
        get(r, 4);
        size_t limit = (size_t)get(r, 4);
        get(r, 1);
        return limit;
}

/* A partition whose log ends at `end`, up to its records. */
static void put_partition(struct connection *c, int64_t index, int64_t end, int64_t record_bytes) {
        put(c, index, 4);
        put(c, 0, 2);
        put(c, end, 8);
        put(c, end, 8);
        put(c, -1, 4);
        put(c, record_bytes, 4);
}

/* Sends the answer by itself: what it carries lies elsewhere. */
static void answer_fetch(struct connection *c, int64_t correlation_id, struct cursor *r) {
        static struct iovec pieces[PIECES_MAX];
        static uint8_t base_offsets[BATCHES_MAX][BASE_OFFSET_BYTES];
        size_t count = 0, batches = 0, carried = 0, from = 0;
        int length;
        size_t limit = get_fetch_limit(r);
        begin_answer(c, correlation_id);
        if (limit > answer_bytes)
                limit = answer_bytes;
        int64_t named = get(r, 4);
        put(c, 0, 4);
        put(c, named, 4);
        for (int64_t i = 0; i < named && !r->short_of; i++) {
                const uint8_t *name = get_string(r, &length);
                struct topic *t     = find_topic(name, length);
                put_string(c, t->name);
                int64_t partitions = get(r, 4);
                put(c, partitions, 4);
                for (int64_t j = 0; j < partitions && !r->short_of; j++) {
                        int64_t index = get(r, 4), offset = get(r, 8), partition_limit = get(r, 4), n = 0;
                        int64_t number = t->records ? offset / t->records : 0;
                        while (t->batch && batches + (size_t)n < BATCHES_MAX &&
                               (carried + (size_t)(n + 1) * t->batch_bytes <= limit || batches + (size_t)n == 0) &&
                               (n == 0 || (n + 1) * (int64_t)t->batch_bytes <= partition_limit))
                                n++;
                        put_partition(c, index, INT64_C(1) << 60, n * (int64_t)t->batch_bytes);
                        if (!n)
                                continue;
                        pieces[count++] = (struct iovec){c->out + from, c->filled - from};
                        from            = c->filled;
                        carried += (size_t)n * t->batch_bytes;
                        for (; n; n--, number++, batches++) {
                                put_later(base_offsets[batches], number * t->records, BASE_OFFSET_BYTES);
                                pieces[count++] = (struct iovec){base_offsets[batches], BASE_OFFSET_BYTES};
                                pieces[count++] = (struct iovec){
                                    (uint8_t *)batch_at(t, index, number) + BASE_OFFSET_BYTES,
                                    t->batch_bytes - BASE_OFFSET_BYTES};
                        }
                }
        }
        if (!batches) { /* nothing was produced yet: such a consumer waits for good */
                c->filled = c->answer;
                return;
        }
        end_answer(c, carried);
        if (c->filled > from)
                pieces[count++] = (struct iovec){c->out + from, c->filled - from};
        send_all(c->fd, pieces, count);
        c->filled = 0;
}

/* `path` is overwritten again and again, a page at a time. */
static void tail_open(const char *path) {
        if (posix_memalign(&tail_page, LOG_BLOCK_BYTES, LOG_BLOCK_BYTES))
                fail("memory");
        memset(tail_page, 1, LOG_BLOCK_BYTES);
        tail_file = filled_file(path, TAIL_FILE_BYTES, tail_page, LOG_BLOCK_BYTES);
}

static void tail_sync(void) {
        static int64_t at;
        if (pwrite(tail_file, tail_page, LOG_BLOCK_BYTES, at) != LOG_BLOCK_BYTES || fdatasync(tail_file))
                fail("tail");
        at = (at + LOG_BLOCK_BYTES) % TAIL_FILE_BYTES;
}

/* Answers the Fetch with what is stored from its offset on, or keeps it waiting. */
static void answer_tail(struct connection *c, struct topic *t) {
        static struct iovec pieces[1 + BATCHES_MAX];
        size_t first = t->stored_count, count = 1, carried = 0;
        while (first && t->stored[first - 1].end > c->fetch_offset)
                first--;
        t->waiter = first == t->stored_count ? c : NULL;
        if (t->waiter)
                return;
        for (size_t i = first; i < t->stored_count && count <= BATCHES_MAX; i++, count++) {
                pieces[count] = (struct iovec){t->stored[i].bytes, t->stored[i].length};
                carried += t->stored[i].length;
        }
        begin_answer(c, c->fetch_id);
        put(c, 0, 4);
        put(c, 1, 4);
        put_string(c, t->name);
        put(c, 1, 4);
        put_partition(c, 0, t->stored[t->stored_count - 1].end, (int64_t)carried);
        end_answer(c, carried);
        pieces[0] = (struct iovec){c->out, c->filled};
        send_all(c->fd, pieces, count);
        c->filled = 0;
}

static void start_tail(struct connection *c, int64_t correlation_id, struct cursor *r) {
        int length;
        get_fetch_limit(r);
        int64_t named       = get(r, 4);
        const uint8_t *name = get_string(r, &length);
        struct topic *t     = find_topic(name, length);
        if (named != 1 || t->partitions != 1 || t->waiter) {
                errno = EPROTO;
                fail("a Fetch of other than the one partition");
        }
        get(r, 4 + 4);
        c->fetch_id     = correlation_id;
        c->fetch_offset = get(r, 8);
        answer_tail(c, t);
}

static void store(struct topic *t, uint8_t *bytes, size_t length) {
        if (t->stored_count == t->stored_room) {
                t->stored_room = t->stored_room ? 2 * t->stored_room : 1024;
                t->stored      = realloc(t->stored, t->stored_room * sizeof(*t->stored));
                if (!t->stored)
                        fail("realloc");
        }
        int64_t base = t->stored_count ? t->stored[t->stored_count - 1].end : 0;
        put_later(bytes, base, BASE_OFFSET_BYTES);
        t->stored[t->stored_count++] = (struct stored){bytes, length, base + batch_records(bytes)};
        t->grew                      = 1;
}

/* What one receive has stored: synced, where there is a file, and handed on. */
static void hand_on(void) {
        for (int i = 0; i < topic_count; i++) {
                struct topic *t = &topics[i];
                if (!t->grew)
                        continue;
                t->grew = 0;
                if (tail_page)
                        tail_sync();
                if (t->waiter)
                        answer_tail(t->waiter, t);
        }
}

static void answer(struct connection *c, int api_key, int64_t correlation_id, struct cursor *r) {
        if (log_counts && !tail && api_key == FETCH) {
                errno = EPROTO;
                fail("a Fetch beside a log");
        }
        flush(c); /* answers come in order, and those of Fetch go out from elsewhere */
        if (api_key == FETCH) {
                (tail ? start_tail : answer_fetch)(c, correlation_id, r);
                return;
        }
        begin_answer(c, correlation_id);
        switch (api_key) {
        case API_VERSIONS: answer_api_versions(c, c->version); break;
        case METADATA: answer_metadata(c, r); break;
        case LIST_OFFSETS: answer_list_offsets(c, r); break;
        case INIT_PRODUCER_ID: answer_init_producer_id(c); break;
        default: errno = EPROTO; fail("a request that is not served");
        }
        end_answer(c, 0);
}

/* A request from its first byte: answers it, or begins the answer of a Produce. */
static void start_request(struct connection *c, struct cursor *r) {
        int length;
        int64_t size        = get(r, 4);
        const uint8_t *from = r->at;
        int api_key         = (int)get(r, 2);
        c->version          = (int16_t)get(r, 2);
        int64_t correlation_id = get(r, 4);
        get_string(r, &length);
        if (r->short_of)
                return;
        if (api_key != PRODUCE) {
                if (size > IN_BYTES - 4) {
                        errno = EMSGSIZE;
                        fail("request");
                }
                if (r->end - from < size) {
                        r->short_of = 1;
                        return;
                }
                r->end = from + size;
                answer(c, api_key, correlation_id, r);
                r->at = from + size;
                return;
        }
        get_string(r, &length); /* transactional id */
        int acks      = (int)get(r, 2);
        int64_t count = (get(r, 4), get(r, 4));
        if (r->short_of)
                return;
        if (c->filled > OUT_BYTES / 2)
                flush(c);
        c->acks = acks;
        begin_answer(c, correlation_id);
        put(c, count, 4);
        c->topics = (int)count;
        c->next   = A_TOPIC;
}

static void start_topic(struct connection *c, struct cursor *r) {
        int length;
        const uint8_t *name = get_string(r, &length);
        int64_t partitions  = get(r, 4);
        if (r->short_of)
                return;
        c->topic = find_topic(name, length);
        c->topics--;
        c->partitions = (int)partitions;
        put_string(c, c->topic->name);
        put(c, partitions, 4);
        c->next = A_PARTITION;
}

static void end_records(struct connection *c) {
        if (c->keep && tail) {
                store(c->topic, c->keep, c->keep_bytes);
                c->keep = NULL;
        } else if (c->keep) {
                struct topic *t = c->topic;
                free(t->batch);
                free(t->copies);
                t->copies      = NULL;
                t->batch       = c->keep;
                t->batch_bytes = (size_t)get(&(struct cursor){c->keep + 8, c->keep + 12, 0}, 4) + 12;
                t->records     = batch_records(c->keep);
                c->keep        = NULL;
        }
        if (c->partitions) {
                c->next = A_PARTITION;
        } else if (c->topics) {
                c->next = A_TOPIC;
        } else {
                put(c, 0, 4);
                end_answer(c, 0);
                if (c->acks == 0)
                        c->filled = c->answer;
                c->next = A_REQUEST;
        }
}

static void start_partition(struct connection *c, struct cursor *r) {
        int64_t index = get(r, 4), bytes = get(r, 4);
        if (r->short_of)
                return;
        put(c, index, 4);
        put(c, 0, 2);
        put(c, 0, 8);
        put(c, -1, 8);
        if (c->version >= 5)
                put(c, 0, 8);
        c->partitions--;
        c->records = bytes > 0 ? (size_t)bytes : 0;
        c->kept    = 0;
        c->keep    = NULL;
        c->logs    = log_counts && !(tail && c->topic->partitions == 1);
        if (!c->logs && (tail || c->records > c->topic->batch_bytes + c->topic->batch_bytes / 64)) {
                c->keep       = malloc(c->records);
                c->keep_bytes = c->records;
        }
        c->next = RECORDS;
        if (!c->records)
                end_records(c);
}

static void take_records(struct connection *c, struct cursor *r) {
        size_t n = (size_t)(r->end - r->at) < c->records ? (size_t)(r->end - r->at) : c->records;
        if (c->keep)
                memcpy(c->keep + c->kept, r->at, n);
        if (c->logs)
                log_received(n);
        c->kept += n;
        c->records -= n;
        r->at += n;
        if (c->records)
                r->short_of = 1;
        else
                end_records(c);
}

static void parse(struct connection *c) {
        struct cursor r = {c->in, c->in + c->have, 0};
        const uint8_t *done = c->in;
        while (!r.short_of && r.at < c->in + c->have) {
                r.end = c->in + c->have;
                switch (c->next) {
                case A_REQUEST: start_request(c, &r); break;
                case A_TOPIC: start_topic(c, &r); break;
                case A_PARTITION: start_partition(c, &r); break;
                case RECORDS: take_records(c, &r); break;
                }
                if (!r.short_of || c->next == RECORDS)
                        done = r.at;
        }
        c->have -= (size_t)(done - c->in);
        memmove(c->in, done, c->have);
}

/* One receive; 0 at the end of the connection. */
static int receive(struct connection *c) {
        ssize_t n;
        if (c->next == RECORDS && c->records) {
                size_t most   = c->records;
                uint8_t *into = c->keep ? c->keep + c->kept : NULL;
                if (c->logs) {
                        log_wait_for_room();
                        into = log_place(&most);
                }
                n = recv(c->fd, into, most, MSG_DONTWAIT | (into ? 0 : MSG_TRUNC));
                if (n > 0) {
                        if (c->logs)
                                log_received((size_t)n);
                        c->kept += (size_t)n;
                        c->records -= (size_t)n;
                        if (!c->records)
                                end_records(c);
                }
        } else {
                n = recv(c->fd, c->in + c->have, IN_BYTES - c->have, MSG_DONTWAIT);
                if (n > 0) {
                        c->have += (size_t)n;
                        parse(c);
                }
        }
        return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static void connected(int listener, int poller) {
        struct connection *c     = calloc(1, sizeof(*c));
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        c->fd                    = accept(listener, NULL, NULL);
        if (c->fd < 0 || c->fd >= CONNECTIONS_MAX || epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event))
                fail("accept");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        setsockopt(c->fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); /* not paced, as with kbroker */
        connections[c->fd] = c;
}

static void disconnected(struct connection *c) {
        for (int t = 0; t < topic_count; t++)
                if (topics[t].waiter == c)
                        topics[t].waiter = NULL;
        connections[c->fd] = NULL;
        close(c->fd);
        free(c->keep);
        free(c);
}

static void log_grew(void) {
        eventfd_t times;
        eventfd_read(log_event, &times);
        for (int i = 0; i < CONNECTIONS_MAX; i++)
                if (connections[i])
                        send_held(connections[i]);
}

static void serve(int listener) {
        struct epoll_event events[64], event = {.events = EPOLLIN, .data.ptr = NULL};
        struct epoll_event written = {.events = EPOLLIN, .data.ptr = &log_event};
        int poller = epoll_create1(0);
        if (epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event) ||
            (log_counts && epoll_ctl(poller, EPOLL_CTL_ADD, log_event, &written)))
                fail("epoll_ctl");
        for (;;) {
                int ready = epoll_wait(poller, events, 64, -1);
                for (int i = 0; i < ready; i++) {
                        struct connection *c = events[i].data.ptr;
                        if (!c) {
                                connected(listener, poller);
                        } else if (events[i].data.ptr == &log_event) {
                                log_grew();
                        } else if (!receive(c)) {
                                disconnected(c);
                        } else {
                                hand_on();
                                if (c->next == A_REQUEST)
                                        flush(c);
                        }
                }
        }
}

int main(int argc, char **argv) {
        int logs = (argc == 6 || argc == 7) && !strcmp(argv[2], "log");
        if (argc < 2 || (argc > 4 && !logs)) {
                fprintf(stderr, "usage: free_broker PORT [ANSWER_BYTES [COPIED_BYTES] | tail [FILE] |"
                                " log FILE COUNTS BYTES [FILE]]\n");
                return 2;
        }
        port = atoi(argv[1]);
        tail = argc == 7 || (argc > 2 && !strcmp(argv[2], "tail"));
        if (logs)
                log_open(argv[3], argv[4], atoll(argv[5]));
        else if (argc > 2 && !tail)
                answer_bytes = (size_t)atoll(argv[2]);
        if (argc > 3 && tail)
                tail_open(argv[argc - 1]);
        else if (argc > 3 && !logs)
                copied_bytes = (size_t)atoll(argv[3]);
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        address.sin_addr.s_addr    = htonl(INADDR_LOOPBACK);
        int listener               = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
        if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 1024))
                fail("listen");
        serve(listener);
        return 0;
}
