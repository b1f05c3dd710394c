import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Send 3 messages and receive them, with RocketMQ's own client for Java (remoting).
 *
 * paceline topic create TOPIC  # first, unless auto_create_topic_enable is on
 * mvn -q dependency:copy-dependencies -DoutputDirectory=libs
 * java -cp 'libs/*' SimpleRemoting.java HOST:PORT TOPIC GROUP
 *
 * PACELINE_ACCESS_KEY and PACELINE_SECRET_KEY: a key that signs, while rights are on.
 * PACELINE_TLS_CA: for a gateway with TLS; this client takes any certificate.
 */
public class SimpleRemoting {
    public static void main(String[] arguments) {
        if (arguments.length != 3) {
            System.err.println("usage: java -cp 'libs/*' SimpleRemoting.java HOST:PORT TOPIC GROUP");
            System.exit(1);
        }
        try {
            sendAndReceive(arguments[0], arguments[1], arguments[2]);
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1); // threads of the client would keep the process
        }
    }

    private static void sendAndReceive(String address, String topic, String group)
            throws Exception {
        String key = System.getenv("PACELINE_ACCESS_KEY");
        String secret = System.getenv("PACELINE_SECRET_KEY");
        boolean encrypts = System.getenv("PACELINE_TLS_CA") != null;
        RPCHook signs = key == null ? null : new AclClientRPCHook(new SessionCredentials(key, secret));

        DefaultMQProducer producer = new DefaultMQProducer(group + "-producers", signs);
        producer.setNamesrvAddr(address);
        producer.setUseTLS(encrypts);
        producer.setSendMsgTimeout(10_000); // 3 s by default, for the route and all attempts
        producer.start();
        for (int number = 0; number < 3; number++) {
            byte[] body = ("hello " + number).getBytes(StandardCharsets.UTF_8);
            System.out.println("sent " + producer.send(new Message(topic, body)).getMsgId());
        }
        producer.shutdown();

        CountDownLatch missing = new CountDownLatch(3);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, signs);
        consumer.setNamesrvAddr(address);
        consumer.setUseTLS(encrypts);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                System.out.println(
                    "received " + new String(message.getBody(), StandardCharsets.UTF_8));
                missing.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.setAwaitTerminationMillisWhenShutdown(5000); // else it interrupts listeners
        consumer.start();
        missing.await();
        consumer.shutdown();
    }
}
