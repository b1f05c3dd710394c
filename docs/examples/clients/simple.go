// Send 3 messages and receive them, with RocketMQ's own client for Go (gRPC).
//
// paceline topic create TOPIC  # first: this client does not make the topic
// go mod init simple; go get github.com/apache/rocketmq-clients/golang/v5@v5.1.4
// go run simple.go HOST:PORT TOPIC GROUP
//
// PACELINE_ACCESS_KEY and PACELINE_SECRET_KEY: a key that signs, while rights are on.
// PACELINE_TLS_CA: for a gateway with TLS; this client takes any certificate.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: go run simple.go HOST:PORT TOPIC GROUP")
	}
	endpoint, topic, group := os.Args[1], os.Args[2], os.Args[3]
	// This client encrypts unless it is told not to.
	rmq.EnableSsl = os.Getenv("PACELINE_TLS_CA") != ""
	config := &rmq.Config{
		Endpoint:      endpoint,
		ConsumerGroup: group,
		// It must not be nil; an empty key is sent as no key.
		Credentials: &credentials.SessionCredentials{
			AccessKey:    os.Getenv("PACELINE_ACCESS_KEY"),
			AccessSecret: os.Getenv("PACELINE_SECRET_KEY"),
		},
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
		messages, err := consumer.Receive(context.Background(), 16, 30*time.Second)
		// It is an error of this client that there is no message.
		var status *rmq.ErrRpcStatus
		if errors.As(err, &status) && status.GetCode() == int32(v2.Code_MESSAGE_NOT_FOUND) {
			continue
		}
		check(err)
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
