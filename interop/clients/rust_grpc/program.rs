//! RocketMQ's Rust client, gRPC: one scenario of a job (interop/README.md).

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType, SendReceipt};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};

fn tell(told: Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{told}").expect("stdout");
    out.flush().expect("stdout");
}

fn tell_failed(body: &str, error: &ClientError) {
    tell(json!({"event": "failed", "body": body, "error": format!("{error:?}")}));
}

fn now_unix_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64
}

/// The JSON document; what is not there has its default.
struct Job(Value);

impl Job {
    fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or("")
    }

    fn number(&self, name: &str, default: i64) -> i64 {
        self.0[name].as_i64().unwrap_or(default)
    }

    fn chosen(&self, name: &str, index: usize) -> Option<&str> {
        let values = self.0[name].as_array().filter(|values| !values.is_empty())?;
        values[index % values.len()].as_str()
    }

    fn client(&self) -> ClientOption {
        let mut option = ClientOption::default();
        option.set_access_url(self.text("endpoint"));
        option.set_enable_tls(self.0["tls"].as_bool().unwrap_or(false));
        option.set_access_key(self.text("access_key"));
        option.set_secret_key(self.text("secret_key"));
        // It is the deadline of the call too: a server that waits 5 s at least needs more than that.
        let wait_ms = self.number("await_ms", 5_000) as u64 + 3_000;
        option.set_long_polling_timeout(Duration::from_millis(wait_ms));
        option
    }

    fn body(&self, index: usize) -> String {
        let mut body = format!("{}-{index}", self.text("prefix"));
        if let Some(answer) = self.chosen("answers", index) {
            body = format!("{body}:{answer}");
        }
        let size = self.number("body_size", 0) as usize;
        format!("{body:.<size$}")
    }

    /// The message, and when it is due if it is a delayed one: this client knows whole seconds.
    fn message(&self, index: usize, body: &str) -> Result<(impl Message, Option<i64>), ClientError> {
        let topic = self.text("topic");
        let bytes = body.as_bytes().to_vec();
        let delay_ms = self.number("delay_ms", 0);
        let due = (delay_ms > 0).then(|| (now_unix_ms() + delay_ms + 999) / 1000);
        let mut builder = if let Some(due) = due {
            MessageBuilder::delay_message_builder(topic, bytes, due)
        } else if let Some(group) = self.chosen("groups", index) {
            MessageBuilder::fifo_message_builder(topic, bytes, group)
        } else if self.text("scenario") == "send-transaction" {
            MessageBuilder::transaction_message_builder(topic, bytes)
        } else {
            MessageBuilder::builder().set_topic(topic).set_body(bytes)
        };
        if let Some(tag) = self.chosen("tags", index).filter(|tag| !tag.is_empty()) {
            builder = builder.set_tag(tag);
        }
        let prefix = self.text("prefix");
        let keys = (0..self.number("keys", 0)).map(|key| format!("{prefix}-{index}-k{key}"));
        builder = builder.set_keys(keys.collect::<Vec<_>>());
        let mut properties = HashMap::from([("index".to_string(), index.to_string())]);
        if let Some(given) = self.0["properties"].as_object() {
            for (name, value) in given {
                properties.insert(name.clone(), value.as_str().unwrap_or("").to_string());
            }
        }
        let message = builder.set_properties(properties).build()?;
        Ok((message, due.map(|due| due * 1000)))
    }
}

fn answer_of(body: &str) -> &str {
    body.rsplit(':').next().unwrap_or("").trim_end_matches('.')
}

fn check(message: &MessageView) -> TransactionResolution {
    let body = String::from_utf8_lossy(message.body()).to_string();
    let answer = answer_of(&body).trim_start_matches("check-");
    tell(json!({"event": "checked", "message_id": message.message_id(), "answer": answer}));
    match answer {
        "commit" => TransactionResolution::COMMIT,
        _ => TransactionResolution::ROLLBACK,
    }
}

/// Becomes true when stdin ends.
fn end_of_input() -> Arc<AtomicBool> {
    let is_stopped = Arc::new(AtomicBool::new(false));
    let seen = is_stopped.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        seen.store(true, Ordering::SeqCst);
    });
    is_stopped
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

async fn send(job: &Job) -> Result<(), ClientError> {
    let is_transaction = job.text("scenario") == "send-transaction";
    let is_async = job.text("scenario") == "send-async";
    let mut option = ProducerOption::default();
    option.set_topics(vec![job.text("topic")]);
    let mut producer = if is_transaction {
        let checker = Box::new(|_, message| check(&message));
        Producer::new_transaction_producer(option, job.client(), checker)?
    } else {
        Producer::new(option, job.client())?
    };
    producer.start().await?;
    let producer = Arc::new(producer);
    tell(json!({"event": "ready"}));
    let started = Instant::now();
    let rate = job.0["rate"].as_f64().unwrap_or(0.0);
    let mut pending = Vec::new();
    for index in 0..job.number("count", 0) as usize {
        if rate > 0.0 {
            let due = started + Duration::from_secs_f64(index as f64 / rate);
            tokio::time::sleep_until(due.into()).await;
        }
        let body = job.body(index);
        if is_transaction {
            if let Err(error) = send_in_transaction(job, &producer, index, &body).await {
                tell_failed(&body, &error);
            }
            continue;
        }
        let (message, due) = job.message(index, &body)?;
        let sending = send_one(producer.clone(), message, body, due);
        if is_async {
            pending.push(tokio::spawn(sending));
        } else {
            sending.await;
        }
    }
    for sending in pending {
        sending.await.expect("a task that does not panic");
    }
    if is_transaction {
        let is_stopped = end_of_input();
        while !is_stopped.load(Ordering::SeqCst) {
            pause(50).await;
        }
    }
    match Arc::try_unwrap(producer) {
        Ok(producer) => producer.shutdown().await,
        Err(_) => unreachable!("every task has ended"),
    }
}

async fn send_one(producer: Arc<Producer>, message: impl Message, body: String, due: Option<i64>) {
    match producer.send(message).await {
        Ok(receipt) => tell_sent(&body, &receipt, due),
        Err(error) => tell_failed(&body, &error),
    }
}

fn tell_sent(body: &str, receipt: &SendReceipt, due: Option<i64>) {
    let mut told = json!({
        "event": "sent",
        "body": body,
        "message_id": receipt.message_id(),
        "transaction_id": receipt.transaction_id(),
    });
    if let Some(due) = due {
        told["due_unix_ms"] = json!(due);
    }
    tell(told);
}

async fn send_in_transaction(
    job: &Job,
    producer: &Producer,
    index: usize,
    body: &str,
) -> Result<(), ClientError> {
    let (message, _) = job.message(index, body)?;
    let transaction = producer.send_transaction_message(message).await?;
    tell(json!({
        "event": "sent",
        "body": body,
        "message_id": transaction.message_id(),
        "transaction_id": transaction.transaction_id(),
    }));
    let answer = answer_of(body);
    match answer {
        "commit" => transaction.commit().await?,
        "rollback" => transaction.rollback().await?,
        _ => return Ok(()),
    }
    tell(json!({"event": "answered", "body": body, "answer": answer}));
    Ok(())
}

fn tell_received(message: &MessageView) {
    tell(json!({
        "event": "received",
        "body": String::from_utf8_lossy(message.body()),
        "message_id": message.message_id(),
        "tag": message.tag(),
        "keys": message.keys(),
        "properties": message.properties(),
        "attempt": message.delivery_attempt(),
        "message_group": message.message_group(),
        "at_unix_ms": now_unix_ms(),
    }));
}

async fn simple(job: &Job) -> Result<(), ClientError> {
    let topic = job.text("topic");
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic]);
    option.set_consumer_group(job.text("group"));
    let mut consumer = SimpleConsumer::new(option, job.client())?;
    consumer.start().await?;
    tell(json!({"event": "ready"}));
    let is_stopped = end_of_input();
    let filter = &job.0["filter"];
    let kind = if filter["type"] == "sql" { FilterType::Sql } else { FilterType::Tag };
    let filter = FilterExpression::new(kind, filter["expression"].as_str().unwrap_or("*"));
    let invisible = Duration::from_millis(job.number("invisible_ms", 30_000) as u64);
    while !is_stopped.load(Ordering::SeqCst) {
        let batch = job.number("batch", 16) as i32;
        match consumer.receive_with(topic, &filter, batch, invisible).await {
            Ok(messages) => {
                for message in messages {
                    receive(job, &consumer, &message).await;
                }
            }
            Err(error) => {
                tell_failed("", &error);
                pause(200).await;
            }
        }
    }
    consumer.shutdown().await
}

async fn receive(job: &Job, consumer: &SimpleConsumer, message: &MessageView) {
    tell_received(message);
    if i64::from(message.delivery_attempt()) <= job.number("fail_first", 0) {
        return;
    }
    pause(job.number("hold_ms", 0) as u64).await;
    match consumer.ack(message).await {
        Ok(()) => tell(json!({"event": "acked", "message_id": message.message_id()})),
        Err(error) => tell_failed(&String::from_utf8_lossy(message.body()), &error),
    }
}

fn unsupported(job: &Job) -> Option<String> {
    let scenario = job.text("scenario");
    match scenario {
        "send" | "send-async" | "send-fifo" | "send-delay" | "send-transaction" | "simple" => {}
        _ => return Some(format!("this client has no {scenario}")),
    }
    if job.number("renew_ms", 0) > 0 {
        return Some("this client cannot change the invisible duration".to_string());
    }
    (!job.text("namespace").is_empty()).then(|| "this client has no namespaces".to_string())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let path = std::env::args().nth(1).expect("the path of a job");
    let text = std::fs::read_to_string(path).expect("a job");
    let job = Job(serde_json::from_str(&text).expect("a JSON document"));
    if let Some(why) = unsupported(&job) {
        tell(json!({"event": "unsupported", "why": why}));
        return;
    }
    let ended = match job.text("scenario") {
        "simple" => simple(&job).await,
        _ => send(&job).await,
    };
    if let Err(error) = ended {
        tell_failed("", &error);
    }
    tell(json!({"event": "done"}));
}
