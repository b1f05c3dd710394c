import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Send 3 messages and receive them, with RocketMQ's own client for Java:
 * org.apache.rocketmq:rocketmq-client-java:5.2.0. Arguments: HOST:PORT TOPIC GROUP
 */
public class Simple {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0])
            // This client encrypts by default. With rights on, leave this out and set credentials.
            .enableSsl(false)
            .build();

        try (Producer producer = provider.newProducerBuilder()
                .setClientConfiguration(configuration)
                .setTopics(topic)
                .build()) {
            for (int number = 0; number < 3; number++) {
                Message message = provider.newMessageBuilder()
                    .setTopic(topic)
                    .setBody(("hello " + number).getBytes(StandardCharsets.UTF_8))
                    .build();
                System.out.println("sent " + producer.send(message).getMessageId());
            }
        }

        try (SimpleConsumer consumer = provider.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(arguments[2])
                .setAwaitDuration(Duration.ofSeconds(20))
                .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
                .build()) {
            int received = 0;
            while (received < 3) {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(30))) {
                    System.out.println("received " + StandardCharsets.UTF_8.decode(message.getBody()));
                    consumer.ack(message);
                    received++;
                }
            }
        }
    }
}
