import java.time.Duration;
import java.util.Collection;
import java.util.Properties;
import java.util.TreeSet;

import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A consumer that subscribes by an expression which the broker evaluates. Arguments: the expression, then settings as
 * NAME=VALUE. Says every assignment (all that it owns then) and every record; ends with its input.
 */
public final class PatternReader {
    private PatternReader() {}

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (int index = 1; index < arguments.length; index++) {
            String[] pair = arguments[index].split("=", 2);
            settings.setProperty(pair[0], pair[1]);
        }
        settings.setProperty("group.protocol", "consumer");
        settings.setProperty("auto.offset.reset", "earliest");
        Thread input = new Thread(PatternReader::awaitEnd);
        input.start();
        try (Consumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(new SubscriptionPattern(arguments[0]), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    TreeSet<String> topics = new TreeSet<>();
                    for (TopicPartition partition : consumer.assignment()) {
                        topics.add(partition.topic());
                    }
                    Events.say("assigned", String.join(",", topics));
                }
            });
            while (input.isAlive()) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    Events.say("read", record.topic(), record.value());
                }
            }
        } catch (Throwable failure) {
            Events.say("failed", Events.describe(failure));
            throw failure;
        }
        Events.say("ended");
    }

    private static void awaitEnd() {
        try {
            while (Events.listen() != null) {
                continue;
            }
        } catch (Exception ended) {
            return;
        }
    }
}
