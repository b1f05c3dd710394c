import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.remoting.RPCHook;

/** What a program is told to do (interop/README.md), and the messages that follow from it. */
final class Job {
    private final JsonObject told;

    Job(Path path) throws Exception {
        told = JsonParser.parseString(Files.readString(path)).getAsJsonObject();
    }

    /** Nothing, no text and 0 are the same: all fields are always there. */
    boolean has(String name) {
        if (!told.has(name) || told.get(name).isJsonNull()) {
            return false;
        }
        if (!told.get(name).isJsonPrimitive()) {
            return true;
        }
        String value = told.get(name).getAsString();
        return !value.isEmpty() && !value.equals("0");
    }

    String text(String name, String otherwise) {
        return has(name) ? told.get(name).getAsString() : otherwise;
    }

    String text(String name) {
        return text(name, "");
    }

    int number(String name, int otherwise) {
        return has(name) ? told.get(name).getAsInt() : otherwise;
    }

    boolean flag(String name) {
        return has(name) && told.get(name).getAsBoolean();
    }

    /** Of {"filter": {"type": "tag" or "sql", "expression": ...}}. */
    String filter(String name, String otherwise) {
        return has("filter") ? told.getAsJsonObject("filter").get(name).getAsString() : otherwise;
    }

    String scenario() {
        return text("scenario");
    }

    /** The entry of a list for one message; the list begins again when it is at its end. */
    String chosen(String name, int index) {
        JsonArray values = has(name) ? told.getAsJsonArray(name) : new JsonArray();
        if (values.size() == 0) {
            return null;
        }
        JsonElement value = values.get(index % values.size());
        return value.isJsonNull() || value.getAsString().isEmpty() ? null : value.getAsString();
    }

    /** The bodies are PREFIX-INDEX, in transactions PREFIX-INDEX:ANSWER, padded by full stops. */
    String body(int index) {
        StringBuilder body = new StringBuilder(text("prefix", "message") + "-" + index);
        if (scenario().equals("send-transaction")) {
            String answer = chosen("answers", index);
            body.append(":").append(answer == null ? "commit" : answer);
        }
        while (body.length() < number("body_size", 0)) {
            body.append(".");
        }
        return body.toString();
    }

    Message message(int index) {
        Message message = new Message(text("topic"), body(index).getBytes(StandardCharsets.UTF_8));
        if (chosen("tags", index) != null) {
            message.setTags(chosen("tags", index));
        }
        if (number("keys", 0) > 0) {
            StringBuilder keys = new StringBuilder();
            for (int key = 0; key < number("keys", 0); key++) {
                keys.append(text("prefix", "message")).append("-").append(index).append("-k");
                keys.append(key).append(" ");
            }
            message.setKeys(keys.toString().trim());
        }
        if (chosen("groups", index) != null) {
            MessageAccessor.putProperty(message, "__SHARDINGKEY", chosen("groups", index));
        }
        if (number("delay_level", 0) > 0) {
            message.setDelayTimeLevel(number("delay_level", 0));
        }
        properties().forEach(message::putUserProperty);
        message.putUserProperty("index", Integer.toString(index));
        return message;
    }

    private Map<String, String> properties() {
        Map<String, String> found = new TreeMap<>();
        if (has("properties")) {
            told.getAsJsonObject("properties").asMap()
                .forEach((name, value) -> found.put(name, value.getAsString()));
        }
        return found;
    }

    RPCHook hook() {
        if (text("access_key").isEmpty()) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(text("access_key"), text("secret_key")));
    }

    /** Address, namespace, TLS and VIP port of a producer or consumer. */
    <T extends ClientConfig> T configured(T client) {
        client.setNamesrvAddr(text("nameserver"));
        client.setUseTLS(flag("tls"));
        client.setVipChannelEnabled(flag("vip"));
        client.setPollNameServerInterval(1000);
        client.setInstanceName(text("instance", "interop-" + ProcessHandle.current().pid()));
        if (!text("namespace").isEmpty()) {
            client.setNamespace(text("namespace"));
        }
        return client;
    }
}
