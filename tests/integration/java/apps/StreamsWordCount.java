import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;

/**
 * Counts words: lines are split, repartitioned by word, counted in a store with a changelog, and each new count is
 * written to the output topic. Arguments: application id, input topic, output topic, then settings as NAME=VALUE.
 * Says `state STATE` at each change and `thread-failed WHY` when a stream thread is replaced; ends with its input.
 */
public final class StreamsWordCount {
    private StreamsWordCount() { }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[0]);
        settings.put(StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG,
            BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0); // every count is written
        settings.put(StreamsConfig.producerPrefix("reconnect.backoff.max.ms"), 300);
        settings.put(StreamsConfig.consumerPrefix("reconnect.backoff.max.ms"), 300);
        for (int index = 3; index < arguments.length; index++) {
            String[] pair = arguments[index].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[1], Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
            .count(Named.as("counting"), Materialized.as("counts"))
            .toStream()
            .to(arguments[2], Produced.with(Serdes.String(), Serdes.Long()));
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setStateListener((now, before) -> Events.say("state", now));
            streams.setUncaughtExceptionHandler(failure -> {
                Events.say("thread-failed", Events.describe(failure));
                return StreamThreadExceptionResponse.REPLACE_THREAD;
            });
            streams.start();
            while (Events.listen() != null) {
                // the only input is its end
            }
            streams.close(Duration.ofSeconds(30));
        }
        Runtime.getRuntime().halt(0);
    }
}
