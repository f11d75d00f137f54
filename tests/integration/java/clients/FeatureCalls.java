import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.FeatureUpdate.UpgradeType;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;

/**
 * Updates of one feature by Admin. Arguments: bootstrap servers, feature. For each line `LEVEL TYPE DRY-RUN` that it is
 * told, it says `updated ANSWER LEVEL EPOCH`: "done" or what failed, then the finalized level and epoch.
 */
public final class FeatureCalls {
    private FeatureCalls() { }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.setProperty("bootstrap.servers", arguments[0]);
        try (Admin admin = Admin.create(settings)) {
            for (String[] asked = Events.listen(); asked != null; asked = Events.listen()) {
                String answer = update(admin, arguments[1], asked);
                FeatureMetadata found = admin.describeFeatures().featureMetadata().get();
                Events.say("updated", answer, found.finalizedFeatures().get(arguments[1]).maxVersionLevel(),
                    found.finalizedFeaturesEpoch().orElse(-1L));
            }
        }
    }

    private static String update(Admin admin, String feature, String[] asked) throws Exception {
        FeatureUpdate update = new FeatureUpdate(Short.parseShort(asked[0]), UpgradeType.valueOf(asked[1]));
        UpdateFeaturesOptions options = new UpdateFeaturesOptions().validateOnly(Boolean.parseBoolean(asked[2]));
        try {
            admin.updateFeatures(Map.of(feature, update), options).all().get();
            return "done";
        } catch (ExecutionException failed) {
            return Events.describe(failed.getCause());
        }
    }
}
