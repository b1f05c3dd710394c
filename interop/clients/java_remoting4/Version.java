import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/** What differs between clients: this is 4.9, which knows no exact delay, no recall and no POP. */
final class Version {
    private Version() {
    }

    static boolean can(String scenario, Job job) {
        return !Set.of("send-recall", "pop").contains(scenario) && !job.has("delay_ms");
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void pop(DefaultMQPushConsumer consumer, int invisibleMs) {
        throw new UnsupportedOperationException("POP");
    }

    static void delay(Message message, Job job) {
        message.setDelayTimeLevel(job.number("delay_level", 1));
    }

    static Map<String, ?> told(Message message, SendResult result) {
        return Map.of();
    }

    static String recall(DefaultMQProducer producer, String topic, SendResult result) {
        throw new UnsupportedOperationException("recall");
    }
}
