//! Send 3 messages and receive them, with RocketMQ's own client for Rust.
//!
//! cargo add rocketmq@5.0.0 tokio --features tokio/full; cargo add time --features local-offset
//! (the client calls it and does not ask for it); arguments: HOST:PORT TOPIC GROUP

use std::error::Error;

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (endpoint, topic, group) = (&arguments[0], &arguments[1], &arguments[2]);
    let mut client = ClientOption::default();
    client.set_access_url(endpoint);
    client.set_enable_tls(false);

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
