/* Produces at a rate and sleeps in between: a load beside which others are measured should not take a core to keep time.
 *
 *   paced_load BOOTSTRAP TOPIC SIZE BYTES_PER_SECOND
 *
 * librdkafka, acks=all, batches as with rdkafka_produce of workloads.py. Until it is killed; exit code 1 when a record
 * is lost.
 */
#include "rdkafka_program.h"

enum { PAUSE_NS = 2000000 };

static void delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
        (void)rk, (void)opaque;
        if (message->err) {
                fprintf(stderr, "a record is lost: %s\n", rd_kafka_err2str(message->err));
                exit(1);
        }
}

int main(int argc, char **argv) {
        char error[256];
        if (argc != 5) {
                fprintf(stderr, "usage: paced_load BOOTSTRAP TOPIC SIZE BYTES_PER_SECOND\n");
                return 2;
        }
        size_t size           = (size_t)atoll(argv[3]);
        double per_second     = atof(argv[4]) / (double)size;
        char *payload         = calloc(1, size);
        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        set(conf, "bootstrap.servers", argv[1]);
        set(conf, "log_level", "3");
        set(conf, "acks", "all");
        set(conf, "linger.ms", "5");
        set(conf, "batch.size", "262144");
        rd_kafka_conf_set_dr_msg_cb(conf, delivered);
        rd_kafka_t *producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof(error));
        if (!producer || !payload) {
                fprintf(stderr, "no producer: %s\n", error);
                return 2;
        }
        rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, argv[2], NULL);
        int64_t start = now_ns(), sent = 0;
        for (;;) {
                for (double due = (double)(now_ns() - start) / 1e9 * per_second; (double)sent < due; sent++)
                        while (rd_kafka_produce(topic, RD_KAFKA_PARTITION_UA, RD_KAFKA_MSG_F_COPY, payload, size, NULL,
                                                0, NULL) == -1)
                                rd_kafka_poll(producer, 1);
                rd_kafka_poll(producer, 0);
                nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
        }
}
