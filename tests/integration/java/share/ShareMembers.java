import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.ArrayList;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Members of a share group, each on a thread. Arguments: bootstrap servers, topic, group, members, and NAME=VALUE
 * settings of the consumers. Told `stop M`, member M closes; at the end of the input all do.
 *
 * Says `got M PARTITION OFFSET COUNT VALUE` for each record, `done M PARTITION OFFSET WHAT` when the broker has answered
 * an acknowledgement, `failed M PARTITION OFFSET WHY` when it refused it, `closed M`, and `wrong M WHY`, which no run may
 * say. With share.acknowledgement.mode=explicit a record's value says what becomes of it: `release` (while it was
 * delivered once), `release-always`, `reject`, `renew` (once, then accepted), `hold` (the member stops polling); all else
 * is accepted.
 */
public final class ShareMembers {
    private static final Map<String, Member> MEMBERS = new ConcurrentHashMap<>();

    private ShareMembers() { }

    public static void main(String[] arguments) throws Exception {
        for (int index = 0; index < Integer.parseInt(arguments[3]); index++) {
            Member member = new Member("m" + index, arguments);
            MEMBERS.put(member.getName(), member);
            member.start();
        }
        String[] told = Events.listen();
        for (; told != null; told = Events.listen()) {
            MEMBERS.get(told[1]).ending = true;
        }
        for (Member member : MEMBERS.values()) {
            member.ending = true;
            member.join();
        }
    }

    private static final class Member extends Thread {
        private final Properties settings = new Properties();
        private final String topic;
        private final boolean explicit;
        private volatile boolean ending;

        Member(String name, String[] arguments) {
            super(name);
            topic = arguments[1];
            settings.setProperty("bootstrap.servers", arguments[0]);
            settings.setProperty("group.id", arguments[2]);
            settings.setProperty("reconnect.backoff.max.ms", "300");
            settings.setProperty("default.api.timeout.ms", "20000");
            for (int index = 4; index < arguments.length; index++) {
                int equals = arguments[index].indexOf('=');
                settings.setProperty(arguments[index].substring(0, equals), arguments[index].substring(equals + 1));
            }
            explicit = "explicit".equals(settings.getProperty("share.acknowledgement.mode"));
        }

        @Override
        public void run() {
            StringDeserializer text = new StringDeserializer();
            try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings, text, text)) {
                consumer.subscribe(List.of(topic));
                while (!ending) {
                    turn(consumer);
                }
            } catch (Exception failure) {
                Events.say("wrong", getName(), Events.describe(failure));
            }
            Events.say("closed", getName());
        }

        private void turn(KafkaShareConsumer<String, String> consumer) throws InterruptedException {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
            Map<ConsumerRecord<String, String>, AcknowledgeType> decided = new HashMap<>();
            List<ConsumerRecord<String, String>> renewed = new ArrayList<>();
            boolean hold = false;
            for (ConsumerRecord<String, String> record : records) {
                int count = record.deliveryCount().orElse((short) -1);
                Events.say("got", getName(), record.partition(), record.offset(), count, record.value());
                hold |= explicit && record.value().equals("hold");
                decided.put(record, decision(record.value(), count));
            }
            if (hold) {
                while (!ending) {
                    Thread.sleep(50);
                }
                return;
            }
            if (records.isEmpty()) {
                return;
            }
            if (explicit) {
                decided.forEach((record, type) -> {
                    consumer.acknowledge(record, type);
                    if (type == AcknowledgeType.RENEW) {
                        renewed.add(record);
                    }
                });
            }
            commit(consumer, decided);
            if (!renewed.isEmpty()) {
                Map<ConsumerRecord<String, String>, AcknowledgeType> rest = new HashMap<>();
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                    rest.put(record, AcknowledgeType.ACCEPT);
                }
                commit(consumer, rest);
            }
        }

        private void commit(
            KafkaShareConsumer<String, String> consumer, Map<ConsumerRecord<String, String>, AcknowledgeType> decided
        ) {
            Map<TopicIdPartition, Optional<KafkaException>> results = consumer.commitSync();
            Map<Integer, KafkaException> failures = new HashMap<>();
            results.forEach((where, failure) -> failure.ifPresent(why -> failures.put(where.partition(), why)));
            decided.forEach((record, type) -> {
                KafkaException why = failures.get(record.partition());
                if (why == null) {
                    Events.say("done", getName(), record.partition(), record.offset(), type.name());
                } else {
                    Events.say("failed", getName(), record.partition(), record.offset(), Events.describe(why));
                }
            });
        }

        private AcknowledgeType decision(String value, int count) {
            switch (value) {
                case "release":
                    return count == 1 ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
                case "release-always":
                    return AcknowledgeType.RELEASE;
                case "reject":
                    return AcknowledgeType.REJECT;
                case "renew":
                    return AcknowledgeType.RENEW;
                default:
                    return AcknowledgeType.ACCEPT;
            }
        }
    }
}
