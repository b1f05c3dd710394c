import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers of all kinds; they run until stdin is closed. */
final class Consuming {
    private static final int PAUSE_MS = 100;

    private final Job job;
    private DefaultMQProducer replies;

    private Consuming(Job job) {
        this.job = job;
    }

    /** Whether the scenario is one of these. */
    static boolean run(Job job) throws Exception {
        if (!Version.can(job.scenario(), job)) {
            return false;
        }
        Consuming consuming = new Consuming(job);
        switch (job.scenario()) {
            case "push":
            case "push-ordered":
            case "push-broadcasting":
            case "pop":
            case "reply":
                consuming.push();
                return true;
            case "pull":
                consuming.pull();
                return true;
            case "lite-pull":
                consuming.litePull();
                return true;
            default:
                return false;
        }
    }

    private void push() throws Exception {
        DefaultMQPushConsumer consumer = job.configured(new DefaultMQPushConsumer(job.hook()));
        consumer.setConsumerGroup(job.text("group"));
        consumer.setConsumeFromWhere(job.text("from", "first").equals("last")
            ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (job.has("max_retries")) {
            consumer.setMaxReconsumeTimes(job.number("max_retries", 16));
        }
        consumer.subscribe(job.text("topic"), filter());
        if (job.scenario().equals("push-broadcasting")) {
            Version.broadcast(consumer);
        }
        if (job.scenario().equals("pop")) {
            Version.pop(consumer, job.number("invisible_ms", 30_000));
        }
        if (job.scenario().equals("reply")) {
            replies = job.configured(new DefaultMQProducer("interop-replies", job.hook()));
            replies.start();
        }
        if (job.scenario().equals("push-ordered")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                boolean isGood = messages.stream().allMatch(this::consume);
                context.setSuspendCurrentQueueTimeMillis(200);
                return isGood ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                boolean isGood = messages.stream().allMatch(this::consume);
                return isGood ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        Program.ready();
        Program.untilStdinIsClosed();
        consumer.shutdown();
        if (replies != null) {
            replies.shutdown();
        }
    }

    /** Whether it is done with the message; a job may want the first deliveries to fail. */
    private boolean consume(MessageExt message) {
        Program.message("received", message);
        if (message.getReconsumeTimes() < job.number("fail_first", 0)) {
            return false;
        }
        if (replies != null && !reply(message)) {
            return false;
        }
        Program.tell("acked", Map.of("message_id", message.getMsgId()));
        return true;
    }

    private boolean reply(MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        try {
            Message reply = MessageUtil.createReplyMessage(message, ("reply-" + body).getBytes(StandardCharsets.UTF_8));
            replies.send(reply, job.number("timeout_ms", 3000));
            Program.tell("answered", Map.of("body", body, "answer", "reply"));
            return true;
        } catch (Exception error) {
            Program.failed(body, error);
            return false;
        }
    }

    private MessageSelector filter() {
        String expression = job.filter("expression", "*");
        return job.filter("type", "tag").equals("sql")
            ? MessageSelector.bySql(expression) : MessageSelector.byTag(expression);
    }

    private AtomicBoolean stdinIsClosed() {
        AtomicBoolean isClosed = new AtomicBoolean();
        Thread watch = new Thread(() -> {
            try {
                Program.untilStdinIsClosed();
            } catch (Exception error) {
                Program.failed("", error);
            }
            isClosed.set(true);
        });
        watch.setDaemon(true);
        watch.start();
        return isClosed;
    }

    private void pull() throws Exception {
        DefaultMQPullConsumer consumer = job.configured(new DefaultMQPullConsumer(job.text("group"), job.hook()));
        consumer.start();
        Program.ready();
        AtomicBoolean isClosed = stdinIsClosed();
        Map<MessageQueue, Long> offsets = new HashMap<>();
        while (!isClosed.get()) {
            int count = 0;
            try {
                for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(job.text("topic"))) {
                    count += pullQueue(consumer, queue, offsets);
                }
            } catch (Exception error) {
                Program.failed("", error);
            }
            if (count == 0) {
                Thread.sleep(PAUSE_MS);
            }
        }
        consumer.shutdown();
    }

    private int pullQueue(DefaultMQPullConsumer consumer, MessageQueue queue, Map<MessageQueue, Long> offsets)
        throws Exception {
        if (!offsets.containsKey(queue)) {
            long stored = consumer.fetchConsumeOffset(queue, true);
            offsets.put(queue, stored >= 0 ? stored : consumer.minOffset(queue));
        }
        PullResult result = consumer.pull(queue, filter(), offsets.get(queue), 32);
        if (result.getPullStatus() == PullStatus.FOUND) {
            result.getMsgFoundList().forEach(this::consume);
        }
        if (result.getNextBeginOffset() > offsets.get(queue)) {
            consumer.updateConsumeOffset(queue, result.getNextBeginOffset());
        }
        offsets.put(queue, result.getNextBeginOffset());
        return result.getMsgFoundList() == null ? 0 : result.getMsgFoundList().size();
    }

    private void litePull() throws Exception {
        DefaultLitePullConsumer consumer = job.configured(
            new DefaultLitePullConsumer(job.text("group"), job.hook()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(job.text("topic"), filter());
        consumer.start();
        Program.ready();
        AtomicBoolean isClosed = stdinIsClosed();
        while (!isClosed.get()) {
            List<MessageExt> messages = consumer.poll(500);
            messages.forEach(this::consume);
            if (!messages.isEmpty()) {
                consumer.commitSync();
            }
        }
        consumer.shutdown();
    }
}
