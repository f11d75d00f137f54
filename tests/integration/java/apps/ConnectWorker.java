import java.util.HashMap;
import java.util.Map;

import org.apache.kafka.common.utils.internals.Exit;
import org.apache.kafka.connect.cli.ConnectDistributed;
import org.apache.kafka.connect.runtime.Connect;

/**
 * A distributed Connect worker. Arguments: its settings as NAME=VALUE. Says `ready URL` with the address of its REST
 * API; ends with its input.
 */
public final class ConnectWorker {
    private ConnectWorker() { }

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
        Connect<?> connect = new ConnectDistributed().startConnect(settings);
        Events.say("ready", connect.rest().advertisedUrl());
        while (Events.listen() != null) {
            // the only input is its end
        }
        connect.stop();
        connect.awaitStop();
        Runtime.getRuntime().halt(0);
    }
}
