'use strict';
// Send 3 messages and receive them, with RocketMQ's own client for Node (gRPC).
//
// paceline topic create TOPIC  # first: this client does not make the topic
// npm install rocketmq-client-nodejs@1.0.8
// node simple.js HOST:PORT TOPIC GROUP
//
// PACELINE_ACCESS_KEY and PACELINE_SECRET_KEY: a key that signs, while rights are on.
// PACELINE_TLS_CA: the authority of the cluster, for a gateway with TLS.

const { PACELINE_ACCESS_KEY, PACELINE_SECRET_KEY, PACELINE_TLS_CA } = process.env;
if (PACELINE_TLS_CA) {
  // gRPC reads this variable when it is loaded; the client has no setting for it.
  process.env.GRPC_DEFAULT_SSL_ROOTS_FILE_PATH = PACELINE_TLS_CA;
}
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

async function main(endpoints, topic, consumerGroup) {
  const options = { endpoints, namespace: '', sslEnabled: Boolean(PACELINE_TLS_CA) };
  if (PACELINE_ACCESS_KEY) {
    options.sessionCredentials = {
      accessKey: PACELINE_ACCESS_KEY,
      accessSecret: PACELINE_SECRET_KEY,
    };
  }

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

function fail(why) {
  console.error(why);
  process.exit(1); // timers of the client would keep the process
}

const given = process.argv.slice(2);
if (given.length !== 3) fail('usage: node simple.js HOST:PORT TOPIC GROUP');
main(...given).then(() => process.exit(0), fail);
