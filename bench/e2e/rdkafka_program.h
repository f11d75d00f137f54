/* What the programs of the benchmarks that are clients share. Include it first, as program.h, which it includes. */
#include "program.h"

#include "rdkafka.h"

static inline void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
        char error[256];
        if (rd_kafka_conf_set(conf, name, value, error, sizeof(error)) != RD_KAFKA_CONF_OK) {
                fprintf(stderr, "%s\n", error);
                exit(2);
        }
}
