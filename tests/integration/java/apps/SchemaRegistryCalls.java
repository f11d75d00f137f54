import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;

import org.apache.kafka.clients.ApiVersions;
import org.apache.kafka.clients.ClientUtils;
import org.apache.kafka.clients.GroupRebalanceConfig;
import org.apache.kafka.clients.Metadata;
import org.apache.kafka.clients.NetworkClient;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.internals.AbstractCoordinator;
import org.apache.kafka.clients.consumer.internals.ConsumerNetworkClient;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.internals.ClusterResourceListeners;
import org.apache.kafka.common.message.JoinGroupRequestData.JoinGroupRequestProtocol;
import org.apache.kafka.common.message.JoinGroupRequestData.JoinGroupRequestProtocolCollection;
import org.apache.kafka.common.message.JoinGroupResponseData.JoinGroupResponseMember;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.internals.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Timer;
import org.apache.kafka.common.utils.Utils;

/**
 * The requests of a schema registry: one compacted topic with one partition that it creates and checks, a no-op
 * record that it writes and reads up to, the broker's configs, and the election of a leader in a group with protocol
 * type `sr`. Arguments: bootstrap servers, identity, topic, group.
 *
 * Says `cluster ID`, `topic created|found`, `config PARTITIONS POLICY`, `broker VERSION`, `noop OFFSET`, `read N`, and
 * `leader IDENTITY GENERATION` at each election; ends with its input.
 */
public final class SchemaRegistryCalls {
    private static final String PROTOCOL = "v0";
    private static volatile boolean ending;

    private SchemaRegistryCalls() { }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("reconnect.backoff.max.ms", 300);
        try (Admin admin = Admin.create(settings)) {
            checkTopic(admin, arguments[2]);
        }
        readToNoop(settings, arguments[2], arguments[1]);
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
        try (Election election = Election.open(settings, arguments[3], arguments[1])) {
            while (!ending) {
                election.poll(Duration.ofMillis(100));
            }
        }
    }

    private static void checkTopic(Admin admin, String topic) throws Exception {
        Events.say("cluster", admin.describeCluster().clusterId().get());
        String how = "found";
        if (!admin.listTopics().names().get().contains(topic)) {
            NewTopic wanted = new NewTopic(topic, 1, (short) 1).configs(Map.of("cleanup.policy", "compact"));
            try {
                admin.createTopics(Set.of(wanted)).all().get();
                how = "created";
            } catch (ExecutionException failed) {
                if (!(failed.getCause() instanceof TopicExistsException)) {
                    throw failed;
                }
            }
        }
        Events.say("topic", how);
        int partitions = admin.describeTopics(Set.of(topic)).allTopicNames().get().get(topic).partitions().size();
        Events.say("config", partitions, value(admin, ConfigResource.Type.TOPIC, topic, "cleanup.policy"));
        String node = admin.describeCluster().controller().get().idString();
        Events.say("broker", value(admin, ConfigResource.Type.BROKER, node, "inter.broker.protocol.version"));
    }

    private static String value(Admin admin, ConfigResource.Type type, String name, String key) throws Exception {
        ConfigResource resource = new ConfigResource(type, name);
        Config config = admin.describeConfigs(Set.of(resource)).all().get().get(resource);
        return config.get(key) == null ? null : config.get(key).value();
    }

    private static void readToNoop(Map<String, Object> settings, String topic, String key) throws Exception {
        Map<String, Object> own = new HashMap<>(settings);
        own.put("acks", "all");
        long noop;
        try (KafkaProducer<String, String> producer =
                 new KafkaProducer<>(own, new StringSerializer(), new StringSerializer())) {
            noop = producer.send(new ProducerRecord<>(topic, 0, "noop-" + key, null)).get().offset();
            Events.say("noop", noop);
        }
        own = new HashMap<>(settings);
        own.put("enable.auto.commit", false);
        own.put("auto.offset.reset", "earliest");
        int read = 0;
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(own, new StringDeserializer(), new StringDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long last = -1;
            while (last < noop) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    last = record.offset();
                    read++;
                }
            }
        }
        Events.say("read", read);
    }

    /** A group whose leader chooses the member with the least identity. */
    private static final class Election extends AbstractCoordinator {
        private final String identity;
        private final ConsumerNetworkClient client;
        private final Metrics metrics;

        private Election(GroupRebalanceConfig config, ConsumerNetworkClient client, Metrics metrics, String identity) {
            super(config, new LogContext(), client, metrics, "sr", Time.SYSTEM);
            this.identity = identity;
            this.client = client;
            this.metrics = metrics;
        }

        static Election open(Map<String, Object> settings, String group, String identity) {
            Map<String, Object> own = new HashMap<>(settings);
            own.put("group.id", group);
            own.put("session.timeout.ms", 6000);
            own.put("heartbeat.interval.ms", 500);
            own.put("key.deserializer", StringDeserializer.class);
            own.put("value.deserializer", StringDeserializer.class);
            ConsumerConfig config = new ConsumerConfig(own);
            LogContext log = new LogContext();
            Metrics metrics = new Metrics();
            Metadata metadata = new Metadata(100, 300, 300_000, log, new ClusterResourceListeners());
            List<String> servers = config.getList("bootstrap.servers");
            ClientUtils.maybeBootstrapMetadataSynchronously(config, servers, metadata);
            NetworkClient network = ClientUtils.createNetworkClient(
                config, servers, metrics, "sr", log, new ApiVersions(), Time.SYSTEM, 100, metadata, null, null);
            ConsumerNetworkClient client =
                new ConsumerNetworkClient(log, network, metadata, Time.SYSTEM, 100, 30_000, Integer.MAX_VALUE);
            GroupRebalanceConfig rebalance =
                new GroupRebalanceConfig(config, GroupRebalanceConfig.ProtocolType.CONSUMER);
            return new Election(rebalance, client, metrics, identity);
        }

        void poll(Duration atMost) {
            Timer timer = Time.SYSTEM.timer(atMost);
            if (ensureCoordinatorReady(timer)) {
                ensureActiveGroup();
                pollHeartbeat(Time.SYSTEM.milliseconds());
                client.poll(Time.SYSTEM.timer(atMost));
            }
        }

        @Override
        public String protocolType() {
            return "sr";
        }

        @Override
        public JoinGroupRequestProtocolCollection metadata() {
            JoinGroupRequestProtocolCollection protocols = new JoinGroupRequestProtocolCollection();
            protocols.add(new JoinGroupRequestProtocol().setName(PROTOCOL).setMetadata(bytes(identity)));
            return protocols;
        }

        @Override
        protected boolean onJoinPrepare(Timer timer, int generation, String memberId) {
            return true;
        }

        @Override
        protected Map<String, ByteBuffer> onLeaderElected(
                String leaderId, String protocol, List<JoinGroupResponseMember> members, boolean skipAssignment) {
            TreeMap<String, String> identities = new TreeMap<>();
            for (JoinGroupResponseMember member : members) {
                identities.put(text(ByteBuffer.wrap(member.metadata())), member.memberId());
            }
            Map<String, ByteBuffer> answers = new HashMap<>();
            for (String memberId : identities.values()) {
                answers.put(memberId, ByteBuffer.wrap(bytes(identities.firstKey())));
            }
            return answers;
        }

        @Override
        protected void onJoinComplete(int generation, String memberId, String protocol, ByteBuffer assignment) {
            Events.say("leader", text(assignment), generation, protocol);
        }

        @Override
        public void close(Timer timer, org.apache.kafka.clients.consumer.CloseOptions.GroupMembershipOperation how) {
            super.close(timer, how);
            Utils.closeQuietly(client, "client");
            Utils.closeQuietly(metrics, "metrics");
        }

        private static byte[] bytes(String text) {
            return text.getBytes(StandardCharsets.UTF_8);
        }

        private static String text(ByteBuffer bytes) {
            return StandardCharsets.UTF_8.decode(bytes.duplicate()).toString();
        }
    }
}
