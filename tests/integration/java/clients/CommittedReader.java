import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Reads a topic from its beginning with an isolation level. Arguments: bootstrap servers, topic, isolation level.
 * Says `read PARTITION OFFSET VALUE`; when its input ends, it reads to the end offsets of that moment, says
 * `end PARTITION OFFSET` for each partition, and ends.
 */
public final class CommittedReader {
    private static volatile boolean ending;

    private CommittedReader() { }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.setProperty("bootstrap.servers", arguments[0]);
        settings.setProperty("isolation.level", arguments[2]);
        settings.setProperty("auto.offset.reset", "none");
        settings.setProperty("reconnect.backoff.max.ms", "300");
        settings.setProperty("fetch.max.wait.ms", "100");
        Thread listener = new Thread(() -> {
            try {
                while (Events.listen() != null) {
                    // the only input is its end
                }
            } catch (java.io.IOException gone) {
                Events.say("failed", Events.describe(gone));
            }
            ending = true;
        });
        listener.setDaemon(true);
        listener.start();
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (PartitionInfo info : consumer.partitionsFor(arguments[1])) {
                partitions.add(new TopicPartition(info.topic(), info.partition()));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (!ending) {
                poll(consumer);
            }
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(partition -> consumer.position(partition) < ends.get(partition))) {
                poll(consumer);
            }
            ends.forEach((partition, end) -> Events.say("end", partition.partition(), end));
        }
    }

    private static void poll(KafkaConsumer<String, String> consumer) {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
            Events.say("read", record.partition(), record.offset(), record.value());
        }
    }
}
