import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaFilter;

/**
 * The admin calls that a web interface for Kafka makes at its start and on its pages. Arguments: bootstrap servers,
 * topic, group. Says `answer CALL RESULT` or `error CALL EXCEPTION` for each, and `done`.
 */
public final class UserInterfaceCalls {
    private final Admin admin;
    private final String topic;
    private final String group;

    private UserInterfaceCalls(Admin admin, String topic, String group) {
        this.admin = admin;
        this.topic = topic;
        this.group = group;
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.setProperty("bootstrap.servers", arguments[0]);
        settings.setProperty("request.timeout.ms", "10000");
        settings.setProperty("default.api.timeout.ms", "10000");
        try (Admin admin = Admin.create(settings)) {
            UserInterfaceCalls calls = new UserInterfaceCalls(admin, arguments[1], arguments[2]);
            calls.start();
            calls.pages();
        }
        Events.say("done");
    }

    private static void call(String name, Callable<Object> made) {
        try {
            Events.say("answer", name, made.call());
        } catch (ExecutionException failed) {
            Events.say("error", name, failed.getCause().getClass().getSimpleName(), failed.getCause().getMessage());
        } catch (Exception failed) {
            Events.say("error", name, failed.getClass().getSimpleName(), failed.getMessage());
        }
    }

    /** The calls before the first page. */
    private void start() throws Exception {
        call("describeCluster", () -> {
            var described = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
            return described.clusterId().get() + " " + described.nodes().get().size() + " "
                + described.controller().get().id() + " " + described.authorizedOperations().get().size();
        });
        String node = admin.describeCluster().controller().get().idString();
        call("brokerConfigs", () -> {
            Map<String, String> found = configs(ConfigResource.Type.BROKER, node);
            return found.size() + " " + found.get("inter.broker.protocol.version") + " "
                + found.get("delete.topic.enable") + " " + found.get("auto.create.topics.enable");
        });
        call("describeFeatures", () -> {
            var features = admin.describeFeatures().featureMetadata().get();
            Map<String, Short> levels = new TreeMap<>();
            features.finalizedFeatures().forEach((name, range) -> levels.put(name, range.maxVersionLevel()));
            return features.finalizedFeaturesEpoch().isPresent() + " " + levels;
        });
        call("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY).values().get().size());
    }

    private Map<String, String> configs(ConfigResource.Type type, String name) throws Exception {
        ConfigResource resource = new ConfigResource(type, name);
        DescribeConfigsOptions options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        return admin.describeConfigs(Set.of(resource), options).all().get().get(resource).entries().stream()
            .collect(Collectors.toMap(ConfigEntry::name, entry -> String.valueOf(entry.value())));
    }

    /** Brokers, topics, consumers, transactions, quorum, quotas. */
    private void pages() throws Exception {
        call("listTopics", () -> admin.listTopics().names().get().contains(topic));
        call("topicConfigs", () -> configs(ConfigResource.Type.TOPIC, topic).get("retention.ms"));
        TopicDescription described = admin.describeTopics(Set.of(topic)).allTopicNames().get().get(topic);
        call("describeTopics", () -> described.partitions().size() + " " + described.isInternal());
        List<TopicPartition> partitions = described.partitions().stream()
            .map(info -> new TopicPartition(topic, info.partition())).toList();
        call("listOffsets", () -> {
            long records = 0;
            for (TopicPartition partition : partitions) {
                records += offset(partition, OffsetSpec.latest()) - offset(partition, OffsetSpec.earliest());
            }
            return records;
        });
        Collection<Integer> nodes =
            admin.describeCluster().nodes().get().stream().map(Node::id).toList();
        call("describeLogDirs", () -> admin.describeLogDirs(nodes).allDescriptions().get().values().stream()
            .flatMap(directories -> directories.values().stream())
            .flatMap(directory -> directory.replicaInfos().entrySet().stream())
            .filter(replica -> replica.getKey().topic().equals(topic))
            .mapToLong(replica -> replica.getValue().size()).sum());
        call("listGroups", () -> admin.listConsumerGroups().all().get().stream()
            .filter(listed -> listed.groupId().equals(group))
            .map(listed -> listed.state().map(Object::toString).orElse("?")).toList());
        call("describeGroups", () -> admin.describeConsumerGroups(Set.of(group)).all().get().get(group).state());
        call("groupOffsets", () -> new TreeMap<>(admin.listConsumerGroupOffsets(group)
            .partitionsToOffsetAndMetadata().get().entrySet().stream()
            .collect(Collectors.toMap(entry -> entry.getKey().partition(), entry -> entry.getValue().offset()))));
        call("describeProducers", () -> admin.describeProducers(partitions).all().get().values().stream()
            .mapToInt(state -> state.activeProducers().size()).sum());
        call("listTransactions", () -> admin.listTransactions().all().get().size());
        call("describeQuorum", () -> admin.describeMetadataQuorum().quorumInfo().get().leaderId());
        call("quotas", () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().size());
        call("scram", () -> admin.describeUserScramCredentials().all().get().size());
        call("reassignments", () -> admin.listPartitionReassignments().reassignments().get().size());
    }

    private long offset(TopicPartition partition, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get().offset();
    }
}
