'use strict';
// Send 3 messages and receive them, with RocketMQ's own client for Node.
//
// npm install rocketmq-client-nodejs@1.0.8; node simple.js HOST:PORT TOPIC GROUP

const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

async function main(endpoints, topic, consumerGroup) {
  // With rights on: sessionCredentials with accessKey and accessSecret, and sslEnabled: true.
  const options = { endpoints, namespace: '' };

  const producer = new Producer({ ...options, topics: [topic] });
  await producer.startup();
  for (let number = 0; number < 3; number++) {
    const receipt = await producer.send({ topic, body: Buffer.from(`hello ${number}`) });
    console.log('sent', receipt.messageId);
  }
  await producer.shutdown();

  const consumer = new SimpleConsumer({
    ...options,
    consumerGroup,
    subscriptions: new Map([[topic, '*']]),
    awaitDuration: 20_000,
  });
  await consumer.startup();
  for (let received = 0; received < 3;) {
    for (const message of await consumer.receive(16, 30_000)) {
      console.log('received', message.body.toString());
      await consumer.ack(message);
      received++;
    }
  }
  await consumer.shutdown();
}

main(...process.argv.slice(2)).then(() => process.exit(0));
