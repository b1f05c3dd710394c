//! Send 3 messages and receive them, with RocketMQ's own client for Rust (gRPC).
//!
//! paceline topic create TOPIC  # first: this client does not make the topic
//! cargo add rocketmq@5.0.0 tokio --features tokio/full
//! cargo add time --features local-offset  # the client calls it and does not ask for it
//! cargo run -- HOST:PORT TOPIC GROUP
//!
//! PACELINE_ACCESS_KEY and PACELINE_SECRET_KEY: a key that signs, while rights are on.
//! This client has no TLS.

use std::env::var;
use std::error::Error;

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, topic, group] = &arguments[..] else {
        return Err("usage: cargo run -- HOST:PORT TOPIC GROUP".into());
    };
    let mut client = ClientOption::default();
    client.set_access_url(endpoint);
    client.set_enable_tls(false);
    if let (Ok(key), Ok(secret)) = (var("PACELINE_ACCESS_KEY"), var("PACELINE_SECRET_KEY")) {
        client.set_access_key(key);
        client.set_secret_key(secret);
    }

    let mut option = ProducerOption::default();
    option.set_topics(vec![topic]);
    let mut producer = Producer::new(option, client.clone())?;
    producer.start().await?;
    for number in 0..3 {
        let message = MessageBuilder::builder()
            .set_topic(topic)
            .set_body(format!("hello {number}").into_bytes())
            .build()?;
        println!("sent {}", producer.send(message).await?.message_id());
    }
    producer.shutdown().await?;

    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic]);
    option.set_consumer_group(group);
    let mut consumer = SimpleConsumer::new(option, client)?;
    consumer.start().await?;
    let all = FilterExpression::new(FilterType::Tag, "*");
    let mut received = 0;
    while received < 3 {
        for message in consumer.receive(topic, &all).await? {
            println!("received {}", String::from_utf8_lossy(message.body()));
            consumer.ack(&message).await?;
            received += 1;
        }
    }
    consumer.shutdown().await?;
    Ok(())
}
