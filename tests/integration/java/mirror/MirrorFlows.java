import java.time.Duration;
import java.util.HashMap;
import java.util.Map;

import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.connect.mirror.MirrorMaker;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/**
 * MirrorMaker 2 in one process. Arguments: its settings as NAME=VALUE. Says `ready`. The line `translate CLUSTER
 * BOOTSTRAP GROUP` asks what a group's offsets of that cluster are in the other one, whose bootstrap servers are given:
 * `translated GROUP TOPIC PARTITION OFFSET` for each, then `translation GROUP`. Ends with its input.
 */
public final class MirrorFlows {
    private MirrorFlows() { }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> settings = new HashMap<>();
        for (String argument : arguments) {
            String[] pair = argument.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        Exit.setExitProcedure((code, message) -> {
            Events.say("exit", code, message);
            Runtime.getRuntime().halt(code);
        });
        MirrorMaker mirror = new MirrorMaker(settings);
        mirror.start();
        Events.say("ready");
        for (String[] line = Events.listen(); line != null; line = Events.listen()) {
            translate(line[1], line[2], line[3]);
        }
        mirror.stop();
        mirror.awaitStop();
        Runtime.getRuntime().halt(0);
    }

    private static void translate(String cluster, String bootstrap, String group) throws Exception {
        Map<String, Object> target = new HashMap<>();
        target.put("bootstrap.servers", bootstrap);
        Map<TopicPartition, OffsetAndMetadata> found =
            RemoteClusterUtils.translateOffsets(target, cluster, group, Duration.ofSeconds(10));
        found.forEach((partition, offset) ->
            Events.say("translated", group, partition.topic(), partition.partition(), offset.offset()));
        Events.say("translation", group);
    }
}
