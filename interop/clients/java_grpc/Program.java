import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** RocketMQ's Java client, gRPC: one scenario of a job (interop/README.md). */
public final class Program {
    private static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private static final PrintStream OUT = System.out;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    /** The fields are those of the JSON document. */
    private static final class Job {
        String scenario;
        String endpoint;
        String topic;
        String group;
        int count;
        String access_key = "";
        String secret_key = "";
        boolean tls;
        String namespace = "";
        String prefix;
        double rate;
        List<String> tags = List.of();
        List<String> groups = List.of();
        List<Integer> priorities = List.of();
        List<String> answers = List.of();
        int keys;
        Map<String, String> properties = Map.of();
        int body_size;
        long delay_ms;
        Filter filter = new Filter();
        int fail_first;
        long invisible_ms = 30_000;
        int batch = 16;
        long await_ms = 5_000;
        long renew_ms;
        long hold_ms;
    }

    private static final class Filter {
        String type = "tag";
        String expression = "*";
    }

    private interface Act {
        void run() throws Exception;
    }

    private final Job job;

    private Program(Job job) {
        this.job = job;
    }

    public static void main(String[] arguments) throws IOException {
        Job job = GSON.fromJson(Files.readString(Path.of(arguments[0])), Job.class);
        Program program = new Program(job);
        Act act = switch (job.scenario) {
            case "send", "send-async", "send-fifo", "send-delay", "send-recall", "send-transaction",
                    "send-priority" -> program::send;
            case "push", "push-fifo" -> program::push;
            case "simple" -> program::simple;
            default -> null;
        };
        if (act == null) {
            tell("unsupported", "why", "this client has no " + job.scenario);
            System.exit(0);
        }
        try {
            act.run();
        } catch (Exception error) {
            tellFailed("", error);
        }
        tell("done");
        // Threads of the client may go on for a while.
        System.exit(0);
    }

    private static synchronized void tell(String event, Object... fields) {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("event", event);
        for (int i = 0; i < fields.length; i += 2) {
            told.put((String) fields[i], fields[i + 1]);
        }
        OUT.println(GSON.toJson(told));
        OUT.flush();
    }

    private static void tellFailed(String body, Throwable error) {
        tell("failed", "body", body, "error", error.toString());
    }

    private static void waitForEndOfInput() throws IOException {
        while (System.in.read() != -1) {
            continue;
        }
    }

    private ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder()
            .setEndpoints(job.endpoint)
            .setNamespace(job.namespace)
            .enableSsl(job.tls)
            .setCredentialProvider(
                new StaticSessionCredentialsProvider(job.access_key, job.secret_key))
            .build();
    }

    private String text(int index) {
        StringBuilder text = new StringBuilder(job.prefix + "-" + index);
        if (!job.answers.isEmpty()) {
            text.append(':').append(job.answers.get(index % job.answers.size()));
        }
        while (text.length() < job.body_size) {
            text.append('.');
        }
        return text.toString();
    }

    /** {@code dueUnixMs}: 0 for now. */
    private Message message(int index, String text, long dueUnixMs) {
        MessageBuilder builder = PROVIDER.newMessageBuilder()
            .setTopic(job.topic)
            .setBody(text.getBytes(StandardCharsets.UTF_8))
            .addProperty("index", Integer.toString(index));
        job.properties.forEach(builder::addProperty);
        if (!job.tags.isEmpty() && !job.tags.get(index % job.tags.size()).isEmpty()) {
            builder.setTag(job.tags.get(index % job.tags.size()));
        }
        if (!job.groups.isEmpty()) {
            builder.setMessageGroup(job.groups.get(index % job.groups.size()));
        }
        if (!job.priorities.isEmpty()) {
            builder.setPriority(job.priorities.get(index % job.priorities.size()));
        }
        if (dueUnixMs != 0) {
            builder.setDeliveryTimestamp(dueUnixMs);
        }
        String[] keys = new String[job.keys];
        for (int key = 0; key < job.keys; key++) {
            keys[key] = job.prefix + "-" + index + "-k" + key;
        }
        if (keys.length > 0) {
            builder.setKeys(keys);
        }
        return builder.build();
    }

    private static String answerOf(String text) {
        return text.substring(text.lastIndexOf(':') + 1).replaceAll("\\.+$", "");
    }

    private static TransactionResolution check(MessageView message) {
        String answer = answerOf(bodyOf(message)).replaceFirst("^check-", "");
        tell("checked", "message_id", message.getMessageId().toString(), "answer", answer);
        return answer.equals("commit") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
    }

    private void send() throws Exception {
        boolean isTransaction = job.scenario.equals("send-transaction");
        ProducerBuilder builder = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration())
            .setTopics(job.topic);
        if (isTransaction) {
            builder.setTransactionChecker(Program::check);
        }
        try (Producer producer = builder.build()) {
            tell("ready");
            List<CompletableFuture<Void>> pending = new ArrayList<>();
            long started = System.nanoTime();
            for (int index = 0; index < job.count; index++) {
                if (job.rate > 0) {
                    long due = started + (long) (index / job.rate * 1e9);
                    TimeUnit.NANOSECONDS.sleep(Math.max(0, due - System.nanoTime()));
                }
                String text = text(index);
                try {
                    sendOne(producer, index, text, pending);
                } catch (ClientException | RuntimeException error) {
                    tellFailed(text, error);
                }
            }
            pending.forEach(CompletableFuture::join);
            if (isTransaction) {
                waitForEndOfInput();
            }
        }
    }

    private void sendOne(
            Producer producer, int index, String text, List<CompletableFuture<Void>> pending)
            throws ClientException {
        long due = job.delay_ms == 0 ? 0 : System.currentTimeMillis() + job.delay_ms;
        Message message = message(index, text, due);
        switch (job.scenario) {
            case "send-async" -> pending.add(
                producer.sendAsync(message).handle((receipt, error) -> {
                    if (error != null) {
                        tellFailed(text, error instanceof CompletionException && error.getCause() != null
                            ? error.getCause() : error);
                    } else {
                        tellSent(text, receipt, 0);
                    }
                    return null;
                }));
            case "send-transaction" -> {
                Transaction transaction = producer.beginTransaction();
                tellSent(text, producer.send(message, transaction), 0);
                String answer = answerOf(text);
                if (answer.equals("commit")) {
                    transaction.commit();
                } else if (answer.equals("rollback")) {
                    transaction.rollback();
                } else {
                    return;
                }
                tell("answered", "body", text, "answer", answer);
            }
            default -> {
                SendReceipt receipt = producer.send(message);
                tellSent(text, receipt, due);
                if (job.scenario.equals("send-recall") && index % 2 == 1) {
                    String id = producer.recallMessage(job.topic, receipt.getRecallHandle())
                        .getMessageId().toString();
                    tell("recalled", "body", text, "message_id", id);
                }
            }
        }
    }

    private static void tellSent(String text, SendReceipt receipt, long due) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("body", text);
        fields.put("message_id", receipt.getMessageId().toString());
        if (receipt.getRecallHandle() != null && !receipt.getRecallHandle().isEmpty()) {
            fields.put("recall_handle", receipt.getRecallHandle());
        }
        if (due != 0) {
            fields.put("due_unix_ms", due);
        }
        tell("sent", pairs(fields));
    }

    private static Object[] pairs(Map<String, Object> fields) {
        List<Object> pairs = new ArrayList<>();
        fields.forEach((name, value) -> {
            pairs.add(name);
            pairs.add(value);
        });
        return pairs.toArray();
    }

    private static String bodyOf(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static void tellReceived(MessageView message) {
        tell("received",
            "body", bodyOf(message),
            "message_id", message.getMessageId().toString(),
            "tag", message.getTag().orElse(null),
            "keys", message.getKeys(),
            "properties", message.getProperties(),
            "attempt", message.getDeliveryAttempt(),
            "message_group", message.getMessageGroup().orElse(null),
            "at_unix_ms", System.currentTimeMillis());
    }

    private Map<String, FilterExpression> subscription() {
        FilterExpressionType type =
            job.filter.type.equals("sql") ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return Map.of(job.topic, new FilterExpression(job.filter.expression, type));
    }

    private void push() throws Exception {
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder()
                .setClientConfiguration(configuration())
                .setConsumerGroup(job.group)
                .setSubscriptionExpressions(subscription())
                .setMessageListener(message -> {
                    tellReceived(message);
                    if (message.getDeliveryAttempt() <= job.fail_first) {
                        return ConsumeResult.FAILURE;
                    }
                    tell("acked", "message_id", message.getMessageId().toString());
                    return ConsumeResult.SUCCESS;
                })
                .build()) {
            tell("ready");
            waitForEndOfInput();
        }
    }

    private void simple() throws Exception {
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration())
                .setConsumerGroup(job.group)
                .setAwaitDuration(Duration.ofMillis(job.await_ms))
                .setSubscriptionExpressions(subscription())
                .build()) {
            tell("ready");
            CountDownLatch stopped = new CountDownLatch(1);
            Thread reader = new Thread(() -> {
                try {
                    waitForEndOfInput();
                } catch (IOException error) {
                    tellFailed("", error);
                }
                stopped.countDown();
            });
            reader.setDaemon(true);
            reader.start();
            while (stopped.getCount() > 0) {
                try {
                    for (MessageView message
                            : consumer.receive(job.batch, Duration.ofMillis(job.invisible_ms))) {
                        tellReceived(message);
                        if (message.getDeliveryAttempt() > job.fail_first) {
                            acknowledge(consumer, message, stopped);
                        }
                    }
                } catch (ClientException error) {
                    tellFailed("", error);
                    stopped.await(200, TimeUnit.MILLISECONDS);
                }
            }
        }
    }

    private void acknowledge(SimpleConsumer consumer, MessageView message, CountDownLatch stopped)
            throws InterruptedException {
        String id = message.getMessageId().toString();
        try {
            if (job.renew_ms > 0) {
                consumer.changeInvisibleDuration(message, Duration.ofMillis(job.renew_ms));
                tell("renewed", "message_id", id);
            }
            stopped.await(job.hold_ms, TimeUnit.MILLISECONDS);
            consumer.ack(message);
            tell("acked", "message_id", id);
        } catch (ClientException error) {
            tellFailed(bodyOf(message), error);
        }
    }
}
