import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;

/** RocketMQ's Java client, remoting: one scenario of a job (interop/README.md). */
public final class Program {
    private static final PrintStream OUTPUT = System.out;

    private Program() {
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // the client's own words
        Job job = new Job(Path.of(arguments[0]));
        // Before the client's classes read them. Its logs and offsets lie below user.home.
        String home = job.text("home");
        if (home.isEmpty()) {
            home = Files.createTempDirectory("java-remoting-").toString();
        }
        System.setProperty("user.home", home);
        System.setProperty("rocketmq.client.localOffsetStoreDir", home + "/offsets");
        System.setProperty("tls.enable", Boolean.toString(job.flag("tls")));
        if (job.has("compression")) {
            System.setProperty("rocketmq.message.compressType", job.text("compression").toUpperCase());
        }
        try {
            if (!Sending.run(job) && !Consuming.run(job)) {
                tell("unsupported", Map.of("why", "this client has no " + job.scenario()));
                System.exit(0);
            }
        } catch (Exception error) {
            failed("", error);
        }
        tell("done", Map.of());
        System.exit(0); // threads of the client go on after its shutdown
    }

    static void tell(String event, Map<String, ?> fields) {
        JsonObject line = new JsonObject();
        line.addProperty("event", event);
        fields.forEach((name, value) -> line.add(name, new GsonBuilder().create().toJsonTree(value)));
        synchronized (OUTPUT) {
            OUTPUT.println(line);
            OUTPUT.flush();
        }
    }

    static void ready() {
        tell("ready", Map.of());
    }

    static void failed(String body, Throwable error) {
        String text = error.getClass().getSimpleName() + ": " + error.getMessage();
        if (error.getCause() != null) {
            text += "; cause: " + error.getCause();
        }
        tell("failed", Map.of("body", body, "error", text));
    }

    static void sent(String body, String id, String offsetId, SendResult result, Map<String, ?> more) {
        Map<String, Object> fields = new java.util.LinkedHashMap<>(more);
        fields.put("body", body);
        fields.put("message_id", id);
        if (offsetId != null) {
            fields.put("offset_message_id", offsetId);
        }
        if (result.getMessageQueue() != null) {
            fields.put("queue", result.getMessageQueue().getQueueId());
        }
        fields.put("offset", result.getQueueOffset());
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            fields.put("status", result.getSendStatus().name());
        }
        if (result instanceof TransactionSendResult) {
            fields.put("transaction_id", result.getTransactionId());
        }
        tell("sent", fields);
    }

    /** Everything that a message came with; `event` is received, or found in a query. */
    static void message(String event, MessageExt message) {
        Map<String, Object> fields = new java.util.LinkedHashMap<>();
        String unique = MessageClientIDSetter.getUniqID(message);
        String group = message.getProperty("__SHARDINGKEY");
        fields.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        fields.put("message_id", unique == null ? message.getMsgId() : unique);
        fields.put("topic", message.getTopic());
        fields.put("tag", message.getTags() == null ? "" : message.getTags());
        fields.put("keys", message.getKeys() == null ? new String[0] : message.getKeys().trim().split(" +"));
        fields.put("properties", message.getProperties());
        fields.put("attempt", message.getReconsumeTimes() + 1);
        fields.put("queue", message.getQueueId());
        fields.put("offset", message.getQueueOffset());
        fields.put("born_unix_ms", message.getBornTimestamp());
        fields.put("stored_unix_ms", message.getStoreTimestamp());
        if (group != null) {
            fields.put("message_group", group);
        }
        fields.put("at_unix_ms", System.currentTimeMillis());
        tell(event, fields);
    }

    static void untilStdinIsClosed() throws Exception {
        while (System.in.read() >= 0) {
            continue;
        }
    }
}
