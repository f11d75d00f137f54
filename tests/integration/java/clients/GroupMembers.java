import java.lang.reflect.Method;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;

import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of one group, each on a thread: they process, then commit, and say so. Arguments: topic, then the
 * consumers' settings as NAME=VALUE. Lines: `add NAME`, `close NAME` (leaves), `abandon NAME` (ends without leaving;
 * for names that begin with "stay"), `interrupt NAME`.
 */
public final class GroupMembers {
    private static final Duration POLL = Duration.ofMillis(100);
    private final Map<String, Member> members = new HashMap<>();
    private final String topic;
    private final Properties settings = new Properties();

    private GroupMembers(String[] arguments) {
        topic = arguments[0];
        for (int index = 1; index < arguments.length; index++) {
            String[] pair = arguments[index].split("=", 2);
            settings.setProperty(pair[0], pair[1]);
        }
        settings.setProperty("enable.auto.commit", "false");
        settings.setProperty("auto.offset.reset", "earliest");
    }

    public static void main(String[] arguments) throws Exception {
        GroupMembers program = new GroupMembers(arguments);
        Events.say("ready");
        for (String[] line = Events.listen(); line != null; line = Events.listen()) {
            switch (line[0]) {
                case "add" -> program.add(line[1]);
                case "close", "abandon" -> program.members.get(line[1]).ending = true;
                case "interrupt" -> program.members.get(line[1]).interrupt();
                default -> throw new IllegalArgumentException(line[0]);
            }
        }
        for (Member member : program.members.values()) {
            member.ending = true;
        }
        for (Member member : program.members.values()) {
            member.join();
        }
    }

    private void add(String name) {
        Member member = new Member(name);
        members.put(name, member);
        member.start();
    }

    private final class Member extends Thread implements ConsumerRebalanceListener {
        private volatile boolean ending;
        private final boolean stays;
        private final Consumer<byte[], byte[]> consumer;

        Member(String name) {
            super(name);
            stays = name.startsWith("stay");
            Properties own = new Properties();
            own.putAll(settings);
            if (stays) {
                own.setProperty("internal.leave.group.on.close", "false"); // what clients before 4.1 have for it
            }
            consumer = new KafkaConsumer<>(own, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }

        @Override
        public void run() {
            String how = "closed";
            try {
                consumer.subscribe(List.of(topic), this);
                while (!ending) {
                    process(consumer.poll(POLL));
                }
            } catch (InterruptException interrupted) {
                Thread.interrupted();
                how = "interrupted";
            } catch (Throwable failure) {
                how = Events.describe(failure);
            }
            try {
                close();
            } catch (Throwable failure) {
                how += " close: " + Events.describe(failure);
            }
            Events.say("ended", getName(), how);
        }

        private void process(ConsumerRecords<byte[], byte[]> records) {
            if (records.isEmpty()) {
                return;
            }
            int generation = consumer.groupMetadata().generationId();
            for (TopicPartition partition : records.partitions()) {
                StringBuilder offsets = new StringBuilder();
                for (ConsumerRecord<byte[], byte[]> record : records.records(partition)) {
                    offsets.append(offsets.isEmpty() ? "" : ",").append(record.offset());
                }
                Events.say("processed", getName(), generation, partition.partition(), offsets);
            }
            commit();
        }

        private void commit() {
            try {
                consumer.commitSync();
            } catch (RebalanceInProgressException rebalancing) {
                Events.say("not-committed", getName()); // it is when the partitions are revoked, or with the next poll
            }
        }

        /** Partitions that are kept may have been processed further than they are committed: those go with them. */
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            if (!partitions.isEmpty()) {
                consumer.commitSync();
            }
            Events.say("revoked", getName(), numbers(partitions));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            Events.say("lost", getName(), numbers(partitions));
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            Events.say("assigned", getName(), numbers(partitions), consumer.groupMetadata().generationId());
        }

        private String numbers(Collection<TopicPartition> partitions) {
            TreeSet<Integer> numbers = new TreeSet<>();
            for (TopicPartition partition : partitions) {
                numbers.add(partition.partition());
            }
            return numbers.toString().replaceAll("[\\[\\] ]", "");
        }

        private void close() throws ReflectiveOperationException {
            Class<?> options;
            try {
                options = Class.forName("org.apache.kafka.clients.consumer.CloseOptions");
            } catch (ClassNotFoundException older) {
                consumer.close();
                return;
            }
            Class<?> operations = Class.forName(options.getName() + "$GroupMembershipOperation");
            Method of = options.getMethod("groupMembershipOperation", operations);
            Object operation = operations.getField(stays ? "REMAIN_IN_GROUP" : "LEAVE_GROUP").get(null);
            Consumer.class.getMethod("close", options).invoke(consumer, of.invoke(null, operation));
        }
    }
}
