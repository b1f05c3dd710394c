// Send 3 messages and receive them, with RocketMQ's own client for Go.
//
// go mod init simple; go get github.com/apache/rocketmq-clients/golang/v5@v5.1.4;
// go run simple.go HOST:PORT TOPIC GROUP
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func main() {
	endpoint, topic, group := os.Args[1], os.Args[2], os.Args[3]
	// This client encrypts by default. With rights on, leave this out and give an access key.
	rmq.EnableSsl = false
	config := &rmq.Config{
		Endpoint:      endpoint,
		ConsumerGroup: group,
		Credentials:   &credentials.SessionCredentials{AccessKey: "nobody", AccessSecret: "nothing"},
	}

	// Without topics this client waits at its start for ever.
	producer, err := rmq.NewProducer(config, rmq.WithTopics(topic))
	check(err)
	check(producer.Start())
	for number := 0; number < 3; number++ {
		message := &rmq.Message{Topic: topic, Body: []byte(fmt.Sprintf("hello %d", number))}
		receipts, err := producer.Send(context.Background(), message)
		check(err)
		fmt.Println("sent", receipts[0].MessageID)
	}
	check(producer.GracefulStop())

	consumer, err := rmq.NewSimpleConsumer(config,
		rmq.WithSimpleAwaitDuration(20*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
	)
	check(err)
	check(consumer.Start())
	for received := 0; received < 3; {
		// It is an error of this client that there is no message.
		messages, _ := consumer.Receive(context.Background(), 16, 30*time.Second)
		for _, message := range messages {
			fmt.Println("received", string(message.GetBody()))
			check(consumer.Ack(context.Background(), message))
			received++
		}
	}
	check(consumer.GracefulStop())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
