import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** What differs between clients: this is 5.5, which has all scenarios. */
final class Version {
    private Version() {
    }

    static boolean can(String scenario, Job job) {
        return true;
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    /** The broker assigns; it pops if `mqadmin setConsumeMode -m POP` was said of the group. */
    static void pop(DefaultMQPushConsumer consumer, int invisibleMs) {
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(invisibleMs);
    }

    static void delay(Message message, Job job) {
        if (job.has("delay_ms")) {
            message.setDeliverTimeMs(System.currentTimeMillis() + job.number("delay_ms", 0));
        } else {
            message.setDelayTimeLevel(job.number("delay_level", 1));
        }
    }

    static Map<String, ?> told(Message message, SendResult result) {
        Map<String, Object> fields = new HashMap<>();
        if (result.getRecallHandle() != null) {
            fields.put("recall_handle", result.getRecallHandle());
        }
        if (message.getProperty("TIMER_DELIVER_MS") != null) {
            fields.put("due_unix_ms", message.getDeliverTimeMs());
        }
        return fields;
    }

    static String recall(DefaultMQProducer producer, String topic, SendResult result) throws Exception {
        return producer.recallMessage(topic, result.getRecallHandle());
    }
}
