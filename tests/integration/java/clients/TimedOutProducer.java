import java.util.Properties;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A transactional producer whose transaction times out. Arguments: bootstrap servers, topic.
 * Says `open` after its first record and waits for a line; then it tries to commit, says `refused ERROR`, aborts, says
 * `aborted`, and commits another record in the next transaction: `committed`.
 */
public final class TimedOutProducer {
    private TimedOutProducer() { }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        Properties settings = new Properties();
        settings.setProperty("bootstrap.servers", arguments[0]);
        settings.setProperty("transactional.id", "timed-out-" + topic);
        settings.setProperty("transaction.timeout.ms", "1000");
        try (KafkaProducer<String, String> producer =
                 new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "late")).get();
            Events.say("open");
            Events.listen();
            try {
                producer.send(new ProducerRecord<>(topic, 0, null, "later"));
                producer.commitTransaction();
                Events.say("committed too late");
            } catch (KafkaException refused) {
                Events.say("refused", Events.describe(refused));
            }
            producer.abortTransaction();
            Events.say("aborted");
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "next")).get();
            producer.commitTransaction();
            Events.say("committed");
        }
    }
}
