'use strict';
// RocketMQ's Node client, gRPC: one scenario of a job (interop/README.md).

const fs = require('node:fs');
const { setTimeout: pause } = require('node:timers/promises');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } =
  require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } =
  require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const job = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
const toldOnStderr = (...what) => process.stderr.write(`${what.join(' ')}\n`);
const logger = { debug() {}, info: toldOnStderr, warn: toldOnStderr, error: toldOnStderr, close() {} };

function tell(event, fields = {}) {
  // Synchronous: what is told before an exit has been told.
  fs.writeSync(1, `${JSON.stringify({ event, ...fields })}\n`);
}

function tellFailed(body, error) {
  tell('failed', { body, error: String(error) });
}

const endOfInput = new Promise((resolve) => {
  process.stdin.on('end', resolve).on('close', resolve).resume();
});

function options() {
  return {
    endpoints: job.endpoint,
    namespace: job.namespace,
    sslEnabled: job.tls,
    sessionCredentials: { accessKey: job.access_key, accessSecret: job.secret_key },
    logger,
  };
}

function chosen(name, index) {
  const values = job[name] ?? [];
  return values.length ? values[index % values.length] : undefined;
}

function textOf(index) {
  const answer = chosen('answers', index);
  const text = `${job.prefix}-${index}` + (answer === undefined ? '' : `:${answer}`);
  return text.padEnd(job.body_size ?? 0, '.');
}

function messageOf(index, text) {
  const properties = new Map(Object.entries(job.properties ?? {}));
  properties.set('index', String(index));
  const message = { topic: job.topic, body: Buffer.from(text), properties };
  const tag = chosen('tags', index);
  if (tag) message.tag = tag;
  if (job.groups?.length) message.messageGroup = chosen('groups', index);
  if (job.priorities?.length) message.priority = chosen('priorities', index);
  if (job.delay_ms) message.deliveryTimestamp = new Date(Date.now() + job.delay_ms);
  if (job.keys) {
    message.keys = Array.from({ length: job.keys }, (_, key) => `${job.prefix}-${index}-k${key}`);
  }
  return message;
}

function answerOf(text) {
  return text.slice(text.lastIndexOf(':') + 1).replace(/\.+$/, '');
}

async function check(message) {
  const answer = answerOf(message.body.toString()).replace(/^check-/, '');
  tell('checked', { message_id: message.messageId, answer });
  return answer === 'commit' ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
}

async function send() {
  const isTransaction = job.scenario === 'send-transaction';
  const producer = new Producer({
    ...options(),
    topics: [job.topic],
    ...(isTransaction ? { checker: { check } } : {}),
  });
  await producer.startup();
  tell('ready');
  const started = performance.now();
  const pending = [];
  for (let index = 0; index < job.count; index++) {
    if (job.rate) {
      await pause(Math.max(0, started + (index / job.rate) * 1000 - performance.now()));
    }
    const text = textOf(index);
    const sent = sendOne(producer, index, text).catch((error) => tellFailed(text, error));
    if (job.scenario === 'send-async') pending.push(sent);
    else await sent;
  }
  await Promise.all(pending);
  if (isTransaction) await endOfInput;
  await producer.shutdown();
}

async function sendOne(producer, index, text) {
  const message = messageOf(index, text);
  if (job.scenario === 'send-transaction') {
    await sendInTransaction(producer, text, message);
    return;
  }
  const receipt = await producer.send(message);
  tellSent(text, receipt, message.deliveryTimestamp);
  if (job.scenario === 'send-recall' && index % 2 === 1) {
    const recalled = await producer.recallMessage(job.topic, receipt.recallHandle);
    tell('recalled', { body: text, message_id: recalled.messageId });
  }
}

async function sendInTransaction(producer, text, message) {
  const transaction = producer.beginTransaction();
  tellSent(text, await producer.send(message, transaction));
  const answer = answerOf(text);
  if (answer === 'commit') await transaction.commit();
  else if (answer === 'rollback') await transaction.rollback();
  else return;
  tell('answered', { body: text, answer });
}

function tellSent(text, receipt, due) {
  tell('sent', {
    body: text,
    message_id: receipt.messageId,
    offset: receipt.offset,
    transaction_id: receipt.transactionId || undefined,
    recall_handle: receipt.recallHandle || undefined,
    due_unix_ms: due?.getTime(),
    queue: receipt.messageQueue?.queueId,
  });
}

function tellReceived(message) {
  tell('received', {
    body: message.body.toString(),
    message_id: message.messageId,
    tag: message.tag || null,
    keys: message.keys,
    properties: Object.fromEntries(message.properties),
    attempt: message.deliveryAttempt,
    message_group: message.messageGroup || null,
    offset: message.offset,
    at_unix_ms: Date.now(),
  });
}

function subscriptions() {
  const { type = 'tag', expression = '*' } = job.filter ?? {};
  const kind = type === 'sql' ? FilterType.SQL : FilterType.TAG;
  return new Map([[job.topic, new FilterExpression(expression, kind)]]);
}

async function push() {
  const consumer = new PushConsumer({
    ...options(),
    consumerGroup: job.group,
    subscriptions: subscriptions(),
    messageListener: {
      consume(message) {
        tellReceived(message);
        if (message.deliveryAttempt <= (job.fail_first ?? 0)) return ConsumeResult.FAILURE;
        tell('acked', { message_id: message.messageId });
        return ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  tell('ready');
  await endOfInput;
  await consumer.shutdown();
}

async function simple() {
  const consumer = new SimpleConsumer({
    ...options(),
    consumerGroup: job.group,
    subscriptions: subscriptions(),
    awaitDuration: job.await_ms ?? 5000,
  });
  await consumer.startup();
  tell('ready');
  let isStopped = false;
  const stopped = endOfInput.then(() => { isStopped = true; });
  while (!isStopped) {
    try {
      const messages = await consumer.receive(job.batch ?? 16, job.invisible_ms ?? 30_000);
      for (const message of messages) {
        tellReceived(message);
        if (message.deliveryAttempt > (job.fail_first ?? 0)) {
          await acknowledge(consumer, message, stopped);
        }
      }
    } catch (error) {
      tellFailed('', error);
      await pause(200);
    }
  }
  await consumer.shutdown();
}

async function acknowledge(consumer, message, stopped) {
  try {
    if (job.renew_ms) {
      await consumer.changeInvisibleDuration(message, job.renew_ms);
      tell('renewed', { message_id: message.messageId });
    }
    if (job.hold_ms) await Promise.race([pause(job.hold_ms), stopped]);
    await consumer.ack(message);
    tell('acked', { message_id: message.messageId });
  } catch (error) {
    tellFailed(message.body.toString(), error);
  }
}

async function main() {
  const scenarios = { push, 'push-fifo': push, simple };
  for (const kind of ['', '-async', '-fifo', '-delay', '-recall', '-transaction', '-priority']) {
    scenarios[`send${kind}`] = send;
  }
  const run = scenarios[job.scenario];
  if (!run) {
    tell('unsupported', { why: `this client has no ${job.scenario}` });
    return;
  }
  try {
    await run();
  } catch (error) {
    tellFailed('', error);
  }
  tell('done');
}

// Timers of the client may go on for a while.
main().then(() => process.exit(0));
