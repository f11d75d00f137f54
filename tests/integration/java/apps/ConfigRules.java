import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * Apache Kafka's own rules for configs. Prints one line per config, "topic" or "broker", name, type, default; then
 * answers each line of its input, those two and a value, with "good" or "bad".
 */
public final class ConfigRules {
    public static void main(String[] arguments) throws Exception {
        ConfigDef topic = LogConfig.configDefCopy();
        ConfigDef broker = AbstractKafkaConfig.CONFIG_DEF;
        print("topic", topic);
        print("broker", broker);
        System.out.println("end");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split("\t", -1);
            ConfigDef rules = fields[0].equals("topic") ? topic : broker;
            System.out.println(accepts(rules.configKeys().get(fields[1]), fields[2]) ? "good" : "bad");
        }
    }

    private static void print(String kind, ConfigDef rules) {
        for (ConfigDef.ConfigKey key : new TreeMap<>(rules.configKeys()).values()) {
            if (!key.internalConfig) {
                String value = key.hasDefault() ? ConfigDef.convertToString(key.defaultValue, key.type) : null;
                System.out.println(String.join("\t", kind, key.name, key.type.name(), value == null ? "<none>" : value));
            }
        }
    }

    private static boolean accepts(ConfigDef.ConfigKey key, String text) {
        try {
            Object value = ConfigDef.parseType(key.name, text, key.type);
            if (key.validator != null) {
                key.validator.ensureValid(key.name, value);
            }
            return true;
        } catch (ConfigException refused) {
            return false;
        }
    }
}
