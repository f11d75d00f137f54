import java.io.File;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;

/**
 * Apache Kafka's own reading of its text checkpoints. For each file of a folder two lines, as leader epochs and as
 * offsets of partitions: name, kind, and the entries or "given up".
 */
public final class CheckpointFiles {
    public static void main(String[] arguments) {
        File[] files = new File(arguments[0]).listFiles();
        for (File file : files) {
            print(file, "epochs", () -> epochs(file));
            print(file, "offsets", () -> offsets(file));
        }
    }

    private interface Reading {
        String entries() throws Exception;
    }

    private static void print(File file, String kind, Reading reading) {
        String entries;
        try {
            entries = reading.entries();
        } catch (Exception | OutOfMemoryError error) {
            entries = "given up";
        }
        System.out.println(String.join("\t", file.getName(), kind, entries));
    }

    private static String epochs(File file) throws Exception {
        StringBuilder found = new StringBuilder();
        for (EpochEntry entry : new LeaderEpochCheckpointFile(file, new LogDirFailureChannel(1)).read()) {
            found.append(entry.epoch()).append(' ').append(entry.startOffset()).append(';');
        }
        return found.toString();
    }

    private static String offsets(File file) throws Exception {
        Map<String, Long> found = new TreeMap<>();
        OffsetCheckpointFile checkpoint = new OffsetCheckpointFile(file, new LogDirFailureChannel(1));
        for (Map.Entry<TopicPartition, Long> entry : checkpoint.read().entrySet()) {
            found.put(entry.getKey().topic() + " " + entry.getKey().partition(), entry.getValue());
        }
        StringBuilder text = new StringBuilder();
        found.forEach((partition, offset) -> text.append(partition).append(' ').append(offset).append(';'));
        return text.toString();
    }
}
