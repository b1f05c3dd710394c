// RocketMQ's Go client, gRPC: one scenario of a job (interop/README.md).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type job struct {
	Scenario    string            `json:"scenario"`
	Endpoint    string            `json:"endpoint"`
	Topic       string            `json:"topic"`
	Group       string            `json:"group"`
	Count       int               `json:"count"`
	AccessKey   string            `json:"access_key"`
	SecretKey   string            `json:"secret_key"`
	TLS         bool              `json:"tls"`
	Namespace   string            `json:"namespace"`
	Prefix      string            `json:"prefix"`
	Rate        float64           `json:"rate"`
	Tags        []string          `json:"tags"`
	Groups      []string          `json:"groups"`
	Priorities  []int32           `json:"priorities"`
	Answers     []string          `json:"answers"`
	Keys        int               `json:"keys"`
	Properties  map[string]string `json:"properties"`
	BodySize    int               `json:"body_size"`
	DelayMs     int64             `json:"delay_ms"`
	Filter      filter            `json:"filter"`
	FailFirst   int32             `json:"fail_first"`
	InvisibleMs int64             `json:"invisible_ms"`
	Batch       int32             `json:"batch"`
	AwaitMs     int64             `json:"await_ms"`
	RenewMs     int64             `json:"renew_ms"`
	HoldMs      int64             `json:"hold_ms"`
}

type filter struct {
	Type       string `json:"type"`
	Expression string `json:"expression"`
}

type event map[string]any

var (
	lock sync.Mutex
	out  = bufio.NewWriter(os.Stdout)
)

func tell(name string, fields event) {
	lock.Lock()
	defer lock.Unlock()
	if fields == nil {
		fields = event{}
	}
	fields["event"] = name
	line, _ := json.Marshal(fields)
	_, _ = out.Write(append(line, '\n'))
	_ = out.Flush()
}

func tellFailed(body string, err error) {
	tell("failed", event{"body": body, "error": err.Error()})
}

func (j *job) config() *rmq.Config {
	return &rmq.Config{
		Endpoint:      j.Endpoint,
		NameSpace:     j.Namespace,
		ConsumerGroup: j.Group,
		Credentials:   &credentials.SessionCredentials{AccessKey: j.AccessKey, AccessSecret: j.SecretKey},
	}
}

func (j *job) text(index int) string {
	text := fmt.Sprintf("%s-%d", j.Prefix, index)
	if len(j.Answers) > 0 {
		text += ":" + j.Answers[index%len(j.Answers)]
	}
	if missing := j.BodySize - utf8.RuneCountInString(text); missing > 0 {
		text += strings.Repeat(".", missing)
	}
	return text
}

// The message, and when it is due if it is a delayed one.
func (j *job) message(index int, text string) (*rmq.Message, *time.Time) {
	message := &rmq.Message{Topic: j.Topic, Body: []byte(text)}
	if len(j.Tags) > 0 {
		if tag := j.Tags[index%len(j.Tags)]; tag != "" {
			message.SetTag(tag)
		}
	}
	if len(j.Groups) > 0 {
		message.SetMessageGroup(j.Groups[index%len(j.Groups)])
	}
	if len(j.Priorities) > 0 {
		if err := message.SetPriority(j.Priorities[index%len(j.Priorities)]); err != nil {
			tellFailed(text, err)
		}
	}
	keys := []string{}
	for key := 0; key < j.Keys; key++ {
		keys = append(keys, fmt.Sprintf("%s-%d-k%d", j.Prefix, index, key))
	}
	if len(keys) > 0 {
		message.SetKeys(keys...)
	}
	for name, value := range j.Properties {
		message.AddProperty(name, value)
	}
	message.AddProperty("index", strconv.Itoa(index))
	if j.DelayMs == 0 {
		return message, nil
	}
	due := time.Now().Add(time.Duration(j.DelayMs) * time.Millisecond)
	message.SetDelayTimestamp(due)
	return message, &due
}

func answerOf(text string) string {
	return strings.TrimRight(text[strings.LastIndex(text, ":")+1:], ".")
}

func check(message *rmq.MessageView) rmq.TransactionResolution {
	answer := strings.TrimPrefix(answerOf(string(message.GetBody())), "check-")
	tell("checked", event{"message_id": message.GetMessageId(), "answer": answer})
	if answer == "commit" {
		return rmq.COMMIT
	}
	return rmq.ROLLBACK
}

func send(j *job) error {
	options := []rmq.ProducerOption{rmq.WithTopics(j.Topic)}
	isTransaction := j.Scenario == "send-transaction"
	if isTransaction {
		options = append(options, rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check}))
	}
	producer, err := rmq.NewProducer(j.config(), options...)
	if err != nil {
		return err
	}
	if err = producer.Start(); err != nil {
		return err
	}
	tell("ready", nil)
	var pending sync.WaitGroup
	started := time.Now()
	for index := 0; index < j.Count; index++ {
		if j.Rate > 0 {
			due := started.Add(time.Duration(float64(index) / j.Rate * float64(time.Second)))
			time.Sleep(time.Until(due))
		}
		text := j.text(index)
		message, due := j.message(index, text)
		switch {
		case isTransaction:
			err = sendInTransaction(producer, text, message)
		case j.Scenario == "send-async":
			pending.Add(1)
			producer.SendAsync(context.Background(), message,
				func(_ context.Context, receipts []*rmq.SendReceipt, err error) {
					defer pending.Done()
					if err != nil {
						tellFailed(text, err)
					} else {
						tellSent(text, receipts[0], nil)
					}
				})
		default:
			err = sendOne(j, producer, index, text, message, due)
		}
		if err != nil {
			tellFailed(text, err)
			err = nil
		}
	}
	pending.Wait()
	if isTransaction {
		_, _ = io.ReadAll(os.Stdin)
	}
	return producer.GracefulStop()
}

func sendOne(
	j *job, producer rmq.Producer, index int, text string, message *rmq.Message, due *time.Time,
) error {
	receipts, err := producer.Send(context.Background(), message)
	if err != nil {
		return err
	}
	tellSent(text, receipts[0], due)
	if j.Scenario != "send-recall" || index%2 == 0 {
		return nil
	}
	id, err := producer.Recall(context.Background(), j.Topic, receipts[0].RecallHandle)
	if err == nil {
		tell("recalled", event{"body": text, "message_id": id})
	}
	return err
}

func sendInTransaction(producer rmq.Producer, text string, message *rmq.Message) error {
	transaction := producer.BeginTransaction()
	receipts, err := producer.SendWithTransaction(context.Background(), message, transaction)
	if err != nil {
		return err
	}
	tellSent(text, receipts[0], nil)
	answer := answerOf(text)
	switch answer {
	case "commit":
		err = transaction.Commit()
	case "rollback":
		err = transaction.RollBack()
	default:
		return nil
	}
	if err == nil {
		tell("answered", event{"body": text, "answer": answer})
	}
	return err
}

func tellSent(text string, receipt *rmq.SendReceipt, due *time.Time) {
	told := event{"body": text, "message_id": receipt.MessageID, "offset": receipt.Offset}
	if receipt.TransactionId != "" {
		told["transaction_id"] = receipt.TransactionId
	}
	if receipt.RecallHandle != "" {
		told["recall_handle"] = receipt.RecallHandle
	}
	if due != nil {
		told["due_unix_ms"] = due.UnixMilli()
	}
	tell("sent", told)
}

func tellReceived(message *rmq.MessageView) {
	keys := message.GetKeys()
	if keys == nil {
		keys = []string{}
	}
	tell("received", event{
		"body":          string(message.GetBody()),
		"message_id":    message.GetMessageId(),
		"tag":           message.GetTag(),
		"keys":          keys,
		"properties":    message.GetProperties(),
		"attempt":       message.GetDeliveryAttempt(),
		"message_group": message.GetMessageGroup(),
		"offset":        message.GetOffset(),
		"at_unix_ms":    time.Now().UnixMilli(),
	})
}

func (j *job) subscription() map[string]*rmq.FilterExpression {
	kind := rmq.TAG
	expression := "*"
	if j.Filter.Expression != "" {
		expression = j.Filter.Expression
	}
	if j.Filter.Type == "sql" {
		kind = rmq.SQL92
	}
	return map[string]*rmq.FilterExpression{
		j.Topic: rmq.NewFilterExpressionWithType(expression, kind),
	}
}

func push(j *job) error {
	consume := func(message *rmq.MessageView) rmq.ConsumerResult {
		tellReceived(message)
		if message.GetDeliveryAttempt() <= j.FailFirst {
			return rmq.FAILURE
		}
		tell("acked", event{"message_id": message.GetMessageId()})
		return rmq.SUCCESS
	}
	consumer, err := rmq.NewPushConsumer(j.config(),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(j.subscription()),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}),
		rmq.WithPushConsumptionThreadCount(20),
		rmq.WithPushMaxCacheMessageCount(1024),
	)
	if err != nil {
		return err
	}
	if err = consumer.Start(); err != nil {
		return err
	}
	tell("ready", nil)
	_, _ = io.ReadAll(os.Stdin)
	return consumer.GracefulStop()
}

func simple(j *job) error {
	consumer, err := rmq.NewSimpleConsumer(j.config(),
		rmq.WithSimpleAwaitDuration(time.Duration(orElse(j.AwaitMs, 5000))*time.Millisecond),
		rmq.WithSimpleSubscriptionExpressions(j.subscription()),
	)
	if err != nil {
		return err
	}
	if err = consumer.Start(); err != nil {
		return err
	}
	tell("ready", nil)
	stopped := make(chan struct{})
	go func() {
		_, _ = io.ReadAll(os.Stdin)
		close(stopped)
	}()
	batch := int32(orElse(int64(j.Batch), 16))
	invisible := time.Duration(orElse(j.InvisibleMs, 30_000)) * time.Millisecond
	for !isClosed(stopped) {
		messages, err := consumer.Receive(context.Background(), batch, invisible)
		if err != nil {
			if !strings.Contains(err.Error(), "MESSAGE_NOT_FOUND") {
				tellFailed("", err)
				time.Sleep(200 * time.Millisecond)
			}
			continue
		}
		for _, message := range messages {
			tellReceived(message)
			if message.GetDeliveryAttempt() <= j.FailFirst {
				continue
			}
			if err = acknowledge(j, consumer, message, stopped); err != nil {
				tellFailed(string(message.GetBody()), err)
			}
		}
	}
	return consumer.GracefulStop()
}

func acknowledge(
	j *job, consumer rmq.SimpleConsumer, message *rmq.MessageView, stopped chan struct{},
) error {
	id := event{"message_id": message.GetMessageId()}
	if j.RenewMs > 0 {
		longer := time.Duration(j.RenewMs) * time.Millisecond
		if err := consumer.ChangeInvisibleDuration(message, longer); err != nil {
			return err
		}
		tell("renewed", id)
	}
	select {
	case <-stopped:
	case <-time.After(time.Duration(j.HoldMs) * time.Millisecond):
	}
	if err := consumer.Ack(context.Background(), message); err != nil {
		return err
	}
	tell("acked", id)
	return nil
}

func orElse(value, fallback int64) int64 {
	if value == 0 {
		return fallback
	}
	return value
}

func isClosed(stopped chan struct{}) bool {
	select {
	case <-stopped:
		return true
	default:
		return false
	}
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	j := &job{}
	if err = json.Unmarshal(text, j); err != nil {
		panic(err)
	}
	rmq.EnableSsl = j.TLS
	switch j.Scenario {
	case "send", "send-async", "send-fifo", "send-delay", "send-recall", "send-transaction",
		"send-priority":
		err = send(j)
	case "push", "push-fifo":
		err = push(j)
	case "simple":
		err = simple(j)
	default:
		tell("unsupported", event{"why": "this client has no " + j.Scenario})
		return
	}
	if err != nil {
		tellFailed("", err)
	}
	tell("done", nil)
}
