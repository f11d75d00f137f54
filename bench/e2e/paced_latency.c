/* Paced end-to-end latency: one process produces and consumes one partition, linger 0, acks=all.
 *
 *   paced_latency BOOTSTRAP TOPIC RATE COUNT SIZE
 *
 * Each record carries its send time; the consumer thread subtracts. The first tenth is dropped.
 * Prints one line: p50_ms p99_ms p999_ms max_ms received, and one with the distribution: the latencies at
 * 0, 2.5, ... 97.5, 99, 99.5, 99.9, 99.99 and 100 per cent. Exit code 1 when not all records came back.
 */
#include "rdkafka_program.h"

#include <pthread.h>

static int64_t count, size;
static double *latency_ms;
static volatile int64_t received, acknowledged, failed;
static rd_kafka_t *consumer;
static rd_kafka_topic_t *consumer_topic;

static void delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
        (void)rk, (void)opaque;
        if (message->err)
                failed++;
        else
                acknowledged++;
}

static void *consume(void *opaque) {
        int64_t deadline = *(int64_t *)opaque;
        while (received < count && now_ns() < deadline) {
                rd_kafka_message_t *message = rd_kafka_consume(consumer_topic, 0, 100);
                if (!message)
                        continue;
                if (!message->err && message->len >= 16) {
                        int64_t sent, index;
                        memcpy(&sent, message->payload, 8);
                        memcpy(&index, (char *)message->payload + 8, 8);
                        if (index >= 0 && index < count) {
                                latency_ms[index] = (now_ns() - sent) / 1e6;
                                received++;
                        }
                }
                rd_kafka_message_destroy(message);
        }
        return NULL;
}

int main(int argc, char **argv) {
        char error[256];
        if (argc != 6) {
                fprintf(stderr, "usage: %s BOOTSTRAP TOPIC RATE COUNT SIZE\n", argv[0]);
                return 2;
        }
        double rate = atof(argv[3]);
        count       = atoll(argv[4]);
        size        = atoll(argv[5]) < 16 ? 16 : atoll(argv[5]);
        latency_ms  = calloc(count, sizeof(double));

        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        set(conf, "bootstrap.servers", argv[1]);
        set(conf, "log_level", "3");
        set(conf, "linger.ms", "0");
        set(conf, "acks", "all");
        rd_kafka_conf_set_dr_msg_cb(conf, delivered);
        rd_kafka_t *producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof(error));
        rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, argv[2], NULL);

        conf = rd_kafka_conf_new();
        set(conf, "bootstrap.servers", argv[1]);
        set(conf, "log_level", "3");
        set(conf, "fetch.wait.max.ms", "500");
        consumer       = rd_kafka_new(RD_KAFKA_CONSUMER, conf, error, sizeof(error));
        consumer_topic = rd_kafka_topic_new(consumer, argv[2], NULL);
        int64_t low, high;
        rd_kafka_resp_err_t code;
        int64_t give_up = now_ns() + 20000000000LL; /* a topic that was just made may not have its leader yet */
        while ((code = rd_kafka_query_watermark_offsets(consumer, argv[2], 0, &low, &high, 10000)) && now_ns() < give_up)
                nanosleep(&(struct timespec){0, 50000000}, NULL);
        if (code) {
                fprintf(stderr, "no watermark offsets: %s\n", rd_kafka_err2str(code));
                return 1;
        }
        rd_kafka_consume_start(consumer_topic, 0, high);
        int64_t deadline = now_ns() + (int64_t)((count / rate + 30) * 1e9);
        pthread_t thread;
        pthread_create(&thread, NULL, consume, &deadline);

        char *payload = calloc(1, size);
        int64_t start = now_ns() + 500000000LL;
        for (int64_t i = 0; i < count; i++) {
                int64_t now = wait_until_due(start, i, rate);
                memcpy(payload, &now, 8);
                memcpy(payload + 8, &i, 8);
                while (rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, payload, size, NULL, 0, NULL) == -1)
                        rd_kafka_poll(producer, 1);
                rd_kafka_poll(producer, 0);
        }
        rd_kafka_flush(producer, 30000);
        pthread_join(thread, NULL);

        int64_t skip = count / 10, n = 0;
        for (int64_t i = skip; i < count; i++)
                if (latency_ms[i] > 0)
                        latency_ms[n++] = latency_ms[i];
        qsort(latency_ms, n, sizeof(double), compare_doubles);
        if (n == 0)
                return 1;
        printf("%.3f %.3f %.3f %.3f %lld\n", latency_ms[n / 2], latency_ms[n * 99 / 100], latency_ms[n * 999 / 1000],
               latency_ms[n - 1], (long long)received);
        for (int i = 0; i < 40; i++)
                printf("%.3f ", latency_ms[(int64_t)(n * 0.025 * i)]);
        const double tail[] = {0.99, 0.995, 0.999, 0.9999};
        for (int i = 0; i < 4; i++)
                printf("%.3f ", latency_ms[(int64_t)(n * tail[i])]);
        printf("%.3f\n", latency_ms[n - 1]);
        return received == count && failed == 0 ? 0 : 1;
}
