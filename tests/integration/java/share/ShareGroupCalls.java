import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.WakeupException;

/**
 * Members of share groups, and the admin calls about them. Arguments: consumer settings, name=value. Lines:
 * `add NAME GROUP TOPIC...`, `close NAME`, and the calls below, each of which says `answer CALL ...` or
 * `error CALL EXCEPTION`. A member says `got NAME TOPIC PARTITION OFFSET` for each record, which it accepts, and
 * `ended NAME`.
 */
public final class ShareGroupCalls {
    private final Properties settings = new Properties();
    private final Map<String, Reader> readers = new ConcurrentHashMap<>();
    private final Admin admin;

    private ShareGroupCalls(String[] arguments) {
        for (String argument : arguments) {
            String[] pair = argument.split("=", 2);
            settings.setProperty(pair[0], pair[1]);
        }
        Properties ofAdmin = new Properties();
        ofAdmin.setProperty("bootstrap.servers", settings.getProperty("bootstrap.servers"));
        ofAdmin.setProperty("request.timeout.ms", "20000");
        ofAdmin.setProperty("default.api.timeout.ms", "20000");
        ofAdmin.setProperty("reconnect.backoff.max.ms", "500");
        admin = Admin.create(ofAdmin);
    }

    public static void main(String[] arguments) throws Exception {
        ShareGroupCalls program = new ShareGroupCalls(arguments);
        Events.say("ready");
        for (String[] line = Events.listen(); line != null; line = Events.listen()) {
            program.obey(line);
        }
        System.exit(0);
    }

    private void obey(String[] line) throws Exception {
        switch (line[0]) {
            case "add" -> new Reader(line[1], line[2], List.of(line).subList(3, line.length)).start();
            case "close" -> readers.get(line[1]).consumer.wakeup();
            default -> {
                try {
                    Events.say("answer", line[0], call(line));
                } catch (ExecutionException failed) {
                    Events.say("error", line[0], failed.getCause().getClass().getSimpleName());
                }
            }
        }
    }

    private Object call(String[] line) throws ExecutionException, InterruptedException {
        String group = line.length > 1 ? line[1] : "";
        switch (line[0]) {
            case "describe":
                return described(group);
            case "offsets":
                return offsets(group, Arrays.stream(line).skip(2).map(ShareGroupCalls::partition).toList());
            case "alter":
                admin.alterShareGroupOffsets(group, Map.of(partition(line[2]), Long.valueOf(line[3]))).all().get();
                return group;
            case "forget":
                admin.deleteShareGroupOffsets(group, Set.of(line[2])).all().get();
                return group;
            case "delete":
                admin.deleteShareGroups(List.of(group)).all().get();
                return group;
            case "list":
                return admin.listGroups(ListGroupsOptions.forShareGroups()).all().get().stream()
                    .map(g -> g.groupId() + ":" + g.type().orElseThrow() + ":" + g.protocol() + ":"
                        + g.groupState().orElseThrow())
                    .sorted().collect(Collectors.joining(" "));
            case "configure": {
                var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
                var change = new AlterConfigOp(new ConfigEntry(line[2], line[3]), AlterConfigOp.OpType.SET);
                admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
                return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(line[2]).value();
            }
            default:
                throw new IllegalArgumentException(line[0]);
        }
    }

    /** State, group epoch, assignment epoch, then each member with its partitions. */
    private String described(String group) throws ExecutionException, InterruptedException {
        var found = admin.describeShareGroups(List.of(group)).describedGroups().get(group).get();
        return found.groupState() + " " + found.groupEpoch() + " " + found.targetAssignmentEpoch() + " "
            + found.members().stream()
            .map(member -> member.clientId() + "=" + member.assignment().topicPartitions().stream()
                .map(TopicPartition::toString).sorted().collect(Collectors.joining(",")))
            .sorted().collect(Collectors.joining(" "));
    }

    /** Start offset and lag of each partition. */
    private Map<String, String> offsets(String group, List<TopicPartition> partitions)
            throws ExecutionException, InterruptedException {
        var spec = new ListShareGroupOffsetsSpec();
        if (!partitions.isEmpty()) {
            spec.topicPartitions(partitions);
        }
        Map<String, String> told = new TreeMap<>();
        admin.listShareGroupOffsets(Map.of(group, spec)).partitionsToOffsetInfo(group).get()
            .forEach((partition, info) -> told.put(partition.toString(), info == null ? "none"
                : info.startOffset() + "/" + info.lag().map(Object::toString).orElse("unknown")));
        return told;
    }

    private static TopicPartition partition(String name) {
        int dash = name.lastIndexOf('-');
        return new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
    }

    private final class Reader extends Thread {
        private final KafkaShareConsumer<byte[], byte[]> consumer;
        private final List<String> topics;

        Reader(String name, String group, List<String> topics) {
            super(name);
            this.topics = topics;
            Properties own = new Properties();
            own.putAll(settings);
            own.setProperty("client.id", name);
            own.setProperty("group.id", group);
            own.setProperty("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
            own.setProperty("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
            consumer = new KafkaShareConsumer<>(own);
            readers.put(name, this);
        }

        @Override
        public void run() {
            try {
                consumer.subscribe(topics);
                while (true) {
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
                    for (ConsumerRecord<byte[], byte[]> record : records) {
                        Events.say("got", getName(), record.topic(), record.partition(), record.offset());
                    }
                }
            } catch (WakeupException asked) {
                consumer.close();
                Events.say("ended", getName());
            } catch (Throwable failed) {
                Events.say("failed", getName(), Events.describe(failed));
                consumer.close();
            }
        }
    }
}
