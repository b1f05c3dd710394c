// RocketMQ's Node client, remoting (ali-ons): one scenario of a job (interop/README.md).
'use strict';

const fs = require('fs');
const { Consumer, Message, Producer } = require('ali-ons');

const job = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
// The client logs to stdout: only events may go there.
for (const name of ['debug', 'info', 'log', 'warn']) {
  console[name] = (...words) => console.error(...words);
}

function tell(event, fields = {}) {
  fs.writeSync(1, JSON.stringify({ event, ...fields }) + '\n');
}

function failed(body, error) {
  tell('failed', { body, error: `${error.name}: ${error.message}` });
}

function chosen(name, index) {
  const values = job[name] || [];
  return values.length ? values[index % values.length] : null;
}

function messageOf(index, body) {
  const message = new Message(job.topic, chosen('tags', index) || '', body);
  if (job.keys) {
    message.keys = Array.from({ length: job.keys }, (_, key) => `${job.prefix}-${index}-k${key}`);
  }
  if (chosen('groups', index)) {
    message.shardingKey = chosen('groups', index);
  }
  if (job.delay_level) {
    message.delayTimeLevel = job.delay_level;
  }
  if (job.delay_ms) {
    message.setStartDeliverTime(Date.now() + job.delay_ms);
  }
  Object.assign(message.properties, job.properties || {}, { index: String(index) });
  return message;
}

function options() {
  const quiet = { debug() {}, info() {}, warn: console.warn, error: console.error };
  return {
    httpclient: {}, // it insists on one
    nameSrv: job.nameserver,
    namespace: job.namespace || '',
    accessKeyId: job.access_key,
    accessKeySecret: job.secret_key,
    vipChannelEnabled: Boolean(job.vip),
    pollNameServerInteval: 1000,
    logger: quiet,
  };
}

async function send() {
  const producer = new Producer({ ...options(), producerGroup: job.group || 'interop-producer' });
  producer.on('error', console.error);
  await producer.ready();
  tell('ready');
  const started = Date.now();
  const pending = [];
  for (let index = 0; index < job.count; index++) {
    const body = `${job.prefix}-${index}`.padEnd(job.body_size || 0, '.');
    if (job.rate) {
      const due = started + index * 1000 / job.rate;
      await new Promise(resolve => setTimeout(resolve, Math.max(0, due - Date.now())));
    }
    const sending = sendOne(producer, index, body);
    if (job.scenario === 'send-async') {
      pending.push(sending);
    } else {
      await sending;
    }
  }
  await Promise.all(pending);
  await producer.close();
}

async function sendOne(producer, index, body) {
  try {
    const result = await producer.send(messageOf(index, body));
    const more = result.sendStatus === 'SEND_OK' ? {} : { status: result.sendStatus };
    tell('sent', {
      body,
      message_id: result.msgId,
      queue: Number(result.messageQueue.queueId),
      offset: Number(result.queueOffset),
      ...more,
    });
  } catch (error) {
    failed(body, error);
  }
}

function received(message) {
  const id = message.msgId; // its senders tell the same: they make no unique key
  const group = message.properties.__SHARDINGKEY;
  tell('received', {
    body: message.body.toString(),
    message_id: id,
    topic: message.topic,
    tag: message.tags || '',
    keys: (message.keys || '').split(' ').filter(Boolean),
    properties: message.properties,
    attempt: message.reconsumeTimes + 1,
    queue: message.queueId,
    offset: Number(message.queueOffset),
    born_unix_ms: Number(message.bornTimestamp),
    stored_unix_ms: Number(message.storeTimestamp),
    ...(group ? { message_group: group } : {}),
    at_unix_ms: Date.now(),
  });
  return id;
}

async function push() {
  const more = job.max_retries ? { maxReconsumeTimes: job.max_retries } : {};
  const consumer = new Consumer({
    ...options(),
    ...more,
    consumerGroup: job.group,
    isBroadcast: job.scenario === 'push-broadcasting',
    consumeFromWhere: job.from === 'last' ? 'CONSUME_FROM_LAST_OFFSET' : 'CONSUME_FROM_FIRST_OFFSET',
  });
  consumer.on('error', console.error); // of attempts that it repeats
  const wanted = job.filter || { type: 'tag', expression: '*' };
  const isSql = wanted.type === 'sql';
  consumer.subscribe(
    job.topic,
    isSql ? { expressionType: 'SQL92', subString: wanted.expression } : wanted.expression,
    async message => {
      const id = received(message);
      if (message.reconsumeTimes < (job.fail_first || 0)) {
        // The library does not pass on what the listener returns for a retry, ACTION_RETRY neither.
        throw new Error('it is to come again');
      }
      tell('acked', { message_id: id });
    },
  );
  await consumer.ready();
  tell('ready');
  await new Promise(resolve => process.stdin.on('end', resolve).resume());
  await consumer.close();
}

const SCENARIOS = {
  send,
  'send-async': send,
  'send-delay': send,
  push,
  'push-broadcasting': push,
};

async function main() {
  const run = SCENARIOS[job.scenario];
  if (!run || job.tls || (job.compression && job.compression !== 'zlib')) {
    tell('unsupported', { why: `this client has no ${run ? 'TLS, LZ4 or zstd' : job.scenario}` });
  } else {
    await run().catch(error => failed('', error));
    tell('done');
  }
  process.exit(0); // timers of the client go on after it is closed
}

main();
