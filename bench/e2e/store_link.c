/* A way to a store that takes so many bytes per second, as a network does that the store does not share with the log.
 *
 *   store_link PORT TO_PORT BYTES_PER_SECOND
 *       Listens on 127.0.0.1:PORT until it is killed, and joins each connection to 127.0.0.1:TO_PORT. What all of them
 *       send that way together passes at the rate, at most 10 ms of it at once; answers pass at once. No byte is
 *       copied in this process.
 *
 * For the benchmarks alone. A thread for each direction of each connection.
 */
#include "program.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECE_BYTES = 131072, BURST_NS = 10000000 };

struct way {
        int from, to, paced;
        int *open; /* of the two ways, how many are */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double ns_per_byte;
static int64_t free_at; /* when the link has sent what it was given */

static void wait_for_the_link(int64_t bytes) {
        pthread_mutex_lock(&lock);
        int64_t now = now_ns(), begin = free_at > now - BURST_NS ? free_at : now - BURST_NS;
        free_at = begin + (int64_t)((double)bytes * ns_per_byte);
        pthread_mutex_unlock(&lock);
        if (begin > now) {
                struct timespec pause = {(begin - now) / 1000000000, (begin - now) % 1000000000};
                nanosleep(&pause, NULL);
        }
}

static void *pass(void *argument) {
        struct way *w = argument;
        int pipes[2];
        if (pipe(pipes))
                fail("pipe");
        fcntl(pipes[1], F_SETPIPE_SZ, PIECE_BYTES);
        for (ssize_t got; (got = splice(w->from, NULL, pipes[1], NULL, PIECE_BYTES, SPLICE_F_MOVE)) > 0;) {
                if (w->paced)
                        wait_for_the_link(got);
                for (ssize_t sent; got > 0; got -= sent)
                        if ((sent = splice(pipes[0], NULL, w->to, NULL, (size_t)got, SPLICE_F_MOVE)) <= 0)
                                goto end;
        }
end:
        shutdown(w->to, SHUT_WR);
        shutdown(w->from, SHUT_RD);
        close(pipes[0]);
        close(pipes[1]);
        if (__atomic_sub_fetch(w->open, 1, __ATOMIC_ACQ_REL) == 0) {
                close(w->from);
                close(w->to);
                free(w->open);
        }
        free(w);
        return NULL;
}

static void begin(int from, int to, int paced, int *open) {
        pthread_t thread;
        struct way *w = malloc(sizeof *w);
        if (!w)
                fail("malloc");
        *w = (struct way){from, to, paced, open};
        if ((errno = pthread_create(&thread, NULL, pass, w)))
                fail("pthread_create");
        pthread_detach(thread);
}

static int socket_to(int port, int listening) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        int one = 1, s = socket(AF_INET, SOCK_STREAM, 0);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (s < 0 || (listening ? bind : connect)(s, (struct sockaddr *)&address, sizeof address))
                fail(listening ? "bind" : "connect");
        if (listening && listen(s, 128))
                fail("listen");
        return s;
}

int main(int argc, char **argv) {
        if (argc != 4)
                return fprintf(stderr, "usage: store_link PORT TO_PORT BYTES_PER_SECOND\n"), 2;
        signal(SIGPIPE, SIG_IGN);
        ns_per_byte  = 1e9 / atof(argv[3]);
        int listener = socket_to(atoi(argv[1]), 1), one = 1;
        for (;;) {
                int client = accept(listener, NULL, NULL);
                if (client < 0)
                        continue;
                setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                int server = socket_to(atoi(argv[2]), 0), *open = malloc(sizeof *open);
                if (!open)
                        fail("malloc");
                *open = 2;
                begin(client, server, 1, open);
                begin(server, client, 0, open);
        }
}
