import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.common.Feature;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * What the Kafka release on the class path knows, as one line of JSON: section, then name, then attribute. Lines of its
 * input are values that every config is asked about.
 */
public final class ReleaseTables {
    private static final Map<String, Map<String, Map<String, Object>>> SECTIONS = new TreeMap<>();

    private ReleaseTables() { }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<String> probes = new ArrayList<>();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            probes.add(line);
        }
        apis();
        errors();
        configs("topic config", LogConfig.configDefCopy(), probes);
        configs("group config", GroupConfig.CONFIG_DEF, probes);
        configs("broker config", AbstractKafkaConfig.CONFIG_DEF, probes);
        features();
        records("group", org.apache.kafka.coordinator.group.generated.CoordinatorRecordType.values());
        records("transaction", org.apache.kafka.coordinator.transaction.generated.CoordinatorRecordType.values());
        records("share", org.apache.kafka.coordinator.share.generated.CoordinatorRecordType.values());
        System.out.println(new ObjectMapper().writeValueAsString(SECTIONS));
    }

    private static Map<String, Object> row(String section, String name) {
        return SECTIONS.computeIfAbsent(section, any -> new TreeMap<>()).computeIfAbsent(name, any -> new TreeMap<>());
    }

    /** Versions that are stable, and their fields. */
    private static void apis() {
        for (ApiKeys api : ApiKeys.brokerApis()) {
            Map<String, Object> row = row("api", api.name);
            ApiMessageType messages = api.messageType;
            short last = messages.highestSupportedVersion(false);
            row.put("key", (int) api.id);
            row.put("versions", List.of((int) messages.lowestSupportedVersion(), (int) last));
            for (int version = messages.lowestSupportedVersion(); version <= last; version++) {
                row.put("request v" + version, fields(messages.requestSchemas()[version]));
                row.put("response v" + version, fields(messages.responseSchemas()[version]));
            }
        }
    }

    /** Type by path: "topics[].name". */
    private static Map<String, String> fields(Schema schema) {
        Map<String, String> found = new TreeMap<>();
        walk("", schema, found);
        return found;
    }

    private static void walk(String path, Schema schema, Map<String, String> found) {
        for (BoundField field : schema.fields()) {
            if (field.def.type instanceof TaggedFields) {
                found.put(path + "(tags)", "");
                ((TaggedFields) field.def.type).fields().forEach((tag, each) -> walk(path, each, " tag " + tag, found));
            } else {
                walk(path, field.def, "", found);
            }
        }
    }

    private static void walk(String path, Field field, String suffix, Map<String, String> found) {
        Type type = field.type.arrayElementType().orElse(field.type);
        String name = path + field.name + (field.type.isArray() ? "[]" : "");
        String kind = type instanceof Schema ? "struct" : type.toString().replace("COMPACT_", "").replace("NULLABLE_", "");
        found.put(name, kind.toLowerCase() + (field.type.isNullable() ? " or null" : "") + suffix);
        if (type instanceof Schema) {
            walk(name + ".", (Schema) type, found);
        }
    }

    private static void errors() {
        for (Errors error : Errors.values()) {
            row("error", error.name()).put("code", (int) error.code());
        }
    }

    private static void configs(String section, ConfigDef definitions, List<String> probes) {
        for (ConfigDef.ConfigKey key : definitions.configKeys().values()) {
            if (key.internalConfig) {
                continue;
            }
            Map<String, Object> row = row(section, key.name);
            row.put("type", key.type.name());
            row.put("default", key.hasDefault() ? ConfigDef.convertToString(key.defaultValue, key.type) : null);
            row.put("validator", key.validator == null ? null : key.validator.toString());
            row.put("takes", probes.stream().filter(text -> accepts(key, text)).toList());
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

    private static void features() {
        for (Feature feature : Feature.PRODUCTION_FEATURES) {
            Map<String, Object> row = row("feature", feature.featureName());
            row.put("levels", List.of((int) feature.minimumProduction(), (int) feature.latestProduction()));
        }
        MetadataVersion first = MetadataVersion.MINIMUM_VERSION;
        MetadataVersion last = MetadataVersion.latestProduction();
        Map<String, Object> row = row("feature", MetadataVersion.FEATURE_NAME);
        row.put("levels", List.of((int) first.featureLevel(), (int) last.featureLevel()));
        row.put("release", last.version());
    }

    private static void records(String coordinator, Enum<?>[] types) throws ReflectiveOperationException {
        for (Enum<?> type : types) {
            for (String part : List.of("Key", "Value")) {
                ApiMessage message = (ApiMessage) type.getClass().getMethod("newRecord" + part).invoke(type);
                Schema[] schemas = (Schema[]) message.getClass().getField("SCHEMAS").get(null);
                Map<String, Object> row = row("record", coordinator + " " + message.getClass().getSimpleName());
                if (part.equals("Key")) {
                    row.put("type", ((Short) type.getClass().getMethod("id").invoke(type)).intValue());
                    row.put("fields", fields(schemas[schemas.length - 1]));
                    continue;
                }
                for (int version = message.lowestSupportedVersion(); version < schemas.length; version++) {
                    row.put("fields v" + version, fields(schemas[version]));
                }
            }
        }
    }
}
