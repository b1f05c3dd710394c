import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Send 3 messages and receive them, with RocketMQ's own client for Java (gRPC).
 *
 * paceline topic create TOPIC  # first: this client does not make the topic
 * mvn -q dependency:copy-dependencies -DoutputDirectory=libs
 * java -cp 'libs/*' Simple.java HOST:PORT TOPIC GROUP
 *
 * PACELINE_ACCESS_KEY and PACELINE_SECRET_KEY: a key that signs, while rights are on.
 * PACELINE_TLS_CA: for a gateway with TLS; this client takes any certificate.
 */
public class Simple {
    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 3) {
            System.err.println("usage: java -cp 'libs/*' Simple.java HOST:PORT TOPIC GROUP");
            System.exit(1);
        }
        String topic = arguments[1];
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0])
            // This client encrypts unless it is told not to.
            .enableSsl(System.getenv("PACELINE_TLS_CA") != null);
        String key = System.getenv("PACELINE_ACCESS_KEY");
        if (key != null) {
            String secret = System.getenv("PACELINE_SECRET_KEY");
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(key, secret));
        }
        ClientConfiguration configuration = builder.build();

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
