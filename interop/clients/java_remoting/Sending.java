import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Producers of all kinds, and what asks about messages. */
final class Sending {
    private static final int ASYNC_TIMEOUT_S = 60;

    private final Job job;
    private final DefaultMQProducer producer;
    private CountDownLatch pending = new CountDownLatch(0);

    private Sending(Job job) {
        this.job = job;
        String group = job.text("group", "interop-producer");
        producer = job.configured(job.scenario().equals("send-transaction")
            ? new TransactionMQProducer(group, job.hook()) : new DefaultMQProducer(group, job.hook()));
        producer.setSendMsgTimeout(job.number("timeout_ms", 10_000));
        producer.setCompressMsgBodyOverHowmuch(job.number("compress_over", 4096));
        if (producer instanceof TransactionMQProducer transactions) {
            transactions.setTransactionListener(new Answers());
        }
    }

    /** Whether the scenario is one of these. */
    static boolean run(Job job) throws Exception {
        if (!job.scenario().startsWith("send") && !List.of("request", "query", "load").contains(job.scenario())) {
            return false;
        }
        if (!Version.can(job.scenario(), job)) {
            return false;
        }
        Sending sending = new Sending(job);
        sending.producer.start();
        Program.ready();
        if (job.scenario().equals("query")) {
            sending.query();
        } else if (job.scenario().equals("load")) {
            sending.load(job.number("count", 1) / 5);
            Program.tell("warm", Map.of());
            long startedNs = System.nanoTime();
            int failed = sending.load(job.number("count", 1));
            Program.tell("measured", Map.of("seconds", (System.nanoTime() - startedNs) / 1e9,
                "failed", failed == 0 ? List.of() : List.of(failed + " sends")));
        } else if (job.scenario().equals("send-batch")) {
            sending.sendBatches();
        } else {
            sending.sendAll();
        }
        if (job.scenario().equals("send-transaction")) {
            Program.untilStdinIsClosed();
        }
        sending.producer.shutdown();
        return true;
    }

    private void sendAll() throws Exception {
        int count = job.number("count", 1);
        pending = new CountDownLatch(job.scenario().equals("send-async") ? count : 0);
        long startedNs = System.nanoTime();
        for (int index = 0; index < count; index++) {
            if (job.has("rate")) {
                long dueNs = startedNs + (long) (index * 1e9 / Double.parseDouble(job.text("rate")));
                TimeUnit.NANOSECONDS.sleep(Math.max(0, dueNs - System.nanoTime()));
            }
            String body = job.body(index);
            try {
                send(job.message(index), body, index);
            } catch (Exception error) {
                Program.failed(body, error);
            }
        }
        if (!pending.await(ASYNC_TIMEOUT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(pending.getCount() + " callbacks did not come");
        }
    }

    /** Sends as fast as it can: nothing is told of single messages. How many failed. */
    private int load(int count) throws Exception {
        int atOnce = job.number("in_flight", 1);
        Semaphore inFlight = new Semaphore(atOnce);
        AtomicInteger failed = new AtomicInteger();
        byte[] body = new byte[job.number("body_size", 1)];
        SendCallback ended = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                inFlight.release();
            }

            @Override
            public void onException(Throwable error) {
                failed.incrementAndGet();
                inFlight.release();
            }
        };
        for (int index = 0; index < count; index++) {
            inFlight.acquire();
            producer.send(new Message(job.text("topic"), body), ended);
        }
        inFlight.acquire(atOnce);
        return failed.get();
    }

    private void send(Message message, String body, int index) throws Exception {
        switch (job.scenario()) {
            case "send-async":
                producer.send(message, new Told(body));
                break;
            case "send-oneway":
                producer.sendOneway(message);
                Program.tell("sent", Map.of("body", body));
                break;
            case "send-ordered":
                String group = job.chosen("groups", index);
                told(body, producer.send(message, new SelectMessageQueueByHash(), group == null ? "" : group));
                break;
            case "send-transaction":
                told(body, producer.sendMessageInTransaction(message, null));
                String answer = answer(body);
                if (!answer.startsWith("check-")) {
                    Program.tell("answered", Map.of("body", body, "answer", answer));
                }
                break;
            case "send-delay":
            case "send-recall":
                Version.delay(message, job);
                SendResult result = producer.send(message);
                Program.sent(body, result.getMsgId(), result.getOffsetMsgId(), result, Version.told(message, result));
                if (job.scenario().equals("send-recall") && index % 2 == 1) {
                    String id = Version.recall(producer, job.text("topic"), result);
                    Program.tell("recalled", Map.of("body", body, "message_id", id));
                }
                break;
            case "request":
                Message reply = producer.request(message, job.number("timeout_ms", 10_000));
                String text = new String(reply.getBody(), StandardCharsets.UTF_8);
                Program.tell("replied", Map.of("body", body, "reply", text));
                break;
            default:
                told(body, producer.send(message));
        }
    }

    private void sendBatches() {
        int size = job.number("batch", 10);
        for (int start = 0; start < job.number("count", 1); start += size) {
            List<Message> messages = new ArrayList<>();
            for (int index = start; index < Math.min(start + size, job.number("count", 1)); index++) {
                messages.add(job.message(index));
            }
            try {
                SendResult result = producer.send(messages);
                String[] ids = result.getMsgId().split(",");
                String[] offsetIds = result.getOffsetMsgId().split(",");
                for (int at = 0; at < messages.size(); at++) {
                    String offsetId = offsetIds[Math.min(at, offsetIds.length - 1)];
                    Program.sent(job.body(start + at), ids[at], offsetId, result, Map.of("batch", start));
                }
            } catch (Exception error) {
                for (int at = 0; at < messages.size(); at++) {
                    Program.failed(job.body(start + at), error);
                }
            }
        }
    }

    /** by: key, unique-key or offset-id; value: what to look for. */
    private void query() throws Exception {
        String topic = job.text("topic");
        if (job.text("by", "key").equals("key")) {
            long now = System.currentTimeMillis();
            for (MessageExt found : producer.queryMessage(topic, job.text("value"), 64, 0, now + 1000)
                .getMessageList()) {
                Program.message("found", found);
            }
        } else {
            Program.message("found", producer.viewMessage(topic, job.text("value")));
        }
    }

    private static void told(String body, SendResult result) {
        Program.sent(body, result.getMsgId(), result.getOffsetMsgId(), result, Map.of());
    }

    private static String answer(String body) {
        return body.substring(body.lastIndexOf(':') + 1).replaceAll("\\.+$", "");
    }

    private final class Told implements SendCallback {
        private final String body;

        private Told(String body) {
            this.body = body;
        }

        @Override
        public void onSuccess(SendResult result) {
            told(body, result);
            pending.countDown();
        }

        @Override
        public void onException(Throwable error) {
            Program.failed(body, error);
            pending.countDown();
        }
    }

    /** commit and rollback at once; check-commit and check-rollback when the broker asks. */
    private static final class Answers implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return state(answer(new String(message.getBody(), StandardCharsets.UTF_8)));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            String answer = answer(body).replace("check-", "");
            String id = message.getTransactionId() == null ? message.getMsgId() : message.getTransactionId();
            Program.tell("checked", Map.of("body", body, "message_id", id, "answer", answer));
            return state(answer);
        }

        private static LocalTransactionState state(String answer) {
            switch (answer) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }
    }
}
