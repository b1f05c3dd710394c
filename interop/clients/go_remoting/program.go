// RocketMQ's Go client, remoting: one scenario of a job (interop/README.md).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	asyncTimeout = 60 * time.Second
	// A broker finds whom to send a reply to once the producer has told it of itself.
	firstHeartbeat = 2 * time.Second
)

type filter struct {
	Type       string `json:"type"`
	Expression string `json:"expression"`
}

type job struct {
	Scenario   string            `json:"scenario"`
	Nameserver string            `json:"nameserver"`
	Topic      string            `json:"topic"`
	Group      string            `json:"group"`
	Count      int               `json:"count"`
	AccessKey  string            `json:"access_key"`
	SecretKey  string            `json:"secret_key"`
	TLS        bool              `json:"tls"`
	VIP        bool              `json:"vip"`
	Namespace  string            `json:"namespace"`
	Prefix     string            `json:"prefix"`
	BodySize   int               `json:"body_size"`
	Rate       float64           `json:"rate"`
	Batch      int               `json:"batch"`
	Keys       int               `json:"keys"`
	Tags       []string          `json:"tags"`
	Groups     []string          `json:"groups"`
	Answers    []string          `json:"answers"`
	Properties map[string]string `json:"properties"`
	DelayLevel int               `json:"delay_level"`
	DelayMs    int               `json:"delay_ms"`
	Filter     *filter           `json:"filter"`
	FailFirst  int32             `json:"fail_first"`
	MaxRetries int32             `json:"max_retries"`
	From       string            `json:"from"`
	TimeoutMs  int               `json:"timeout_ms"`
	Compress   string            `json:"compression"`
}

type fields map[string]any

var (
	told     job
	output   = bufio.NewWriter(os.Stdout)
	outputMu sync.Mutex
)

func tell(event string, more fields) {
	line := fields{"event": event}
	for name, value := range more {
		line[name] = value
	}
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	outputMu.Lock()
	defer outputMu.Unlock()
	output.Write(append(text, '\n'))
	output.Flush()
}

func failed(body string, err error) {
	tell("failed", fields{"body": body, "error": err.Error()})
}

func must(err error) {
	if err != nil {
		failed("", err)
		tell("done", nil)
		os.Exit(0)
	}
}

func chosen(values []string, index int) string {
	if len(values) == 0 {
		return ""
	}
	return values[index%len(values)]
}

func bodyOf(index int) string {
	body := fmt.Sprintf("%s-%d", told.Prefix, index)
	if told.Scenario == "send-transaction" {
		body += ":" + chosen(told.Answers, index)
	}
	if length := utf8.RuneCountInString(body); length < told.BodySize {
		body += strings.Repeat(".", told.BodySize-length)
	}
	return body
}

func answerOf(body string) string {
	return strings.TrimRight(body[strings.LastIndex(body, ":")+1:], ".")
}

func messageOf(index int) *primitive.Message {
	message := primitive.NewMessage(told.Topic, []byte(bodyOf(index)))
	if tag := chosen(told.Tags, index); tag != "" {
		message.WithTag(tag)
	}
	if told.Keys > 0 {
		keys := make([]string, told.Keys)
		for key := range keys {
			keys[key] = fmt.Sprintf("%s-%d-k%d", told.Prefix, index, key)
		}
		message.WithKeys(keys)
	}
	if group := chosen(told.Groups, index); group != "" {
		message.WithShardingKey(group)
	}
	if told.DelayLevel > 0 {
		message.WithDelayTimeLevel(told.DelayLevel)
	}
	for name, value := range told.Properties {
		message.WithProperty(name, value)
	}
	message.WithProperty("index", fmt.Sprint(index))
	return message
}

func producerOptions(group string) []producer.Option {
	if group == "" {
		group = "interop-producer"
	}
	options := []producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{told.Nameserver})),
		producer.WithGroupName(group),
		producer.WithInstanceName(fmt.Sprintf("interop-%d", os.Getpid())),
		producer.WithVIPChannel(told.VIP),
		producer.WithRetry(2),
	}
	if told.Scenario == "send-ordered" {
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	if told.Namespace != "" {
		options = append(options, producer.WithNamespace(told.Namespace))
	}
	if told.AccessKey != "" {
		options = append(options, producer.WithCredentials(credentials()))
	}
	return options
}

func credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: told.AccessKey, SecretKey: told.SecretKey}
}

func sent(body string, result *primitive.SendResult) {
	more := fields{
		"body": body, "message_id": result.MsgID, "offset_message_id": result.OffsetMsgID,
		"offset": result.QueueOffset,
	}
	if result.MessageQueue != nil {
		more["queue"] = result.MessageQueue.QueueId
	}
	if result.Status != primitive.SendOK {
		more["status"] = fmt.Sprint(result.Status)
	}
	if told.Scenario == "send-transaction" {
		more["transaction_id"] = result.TransactionID
	}
	tell("sent", more)
}

func send() {
	client, err := rocketmq.NewProducer(producerOptions(told.Group)...)
	must(err)
	must(client.Start())
	tell("ready", nil)
	if told.Scenario == "request" {
		time.Sleep(firstHeartbeat)
	}
	background := context.Background()
	started := time.Now()
	var pending sync.WaitGroup
	for index := 0; index < told.Count; index++ {
		if told.Rate > 0 {
			due := time.Duration(float64(index) / told.Rate * float64(time.Second))
			time.Sleep(time.Until(started.Add(due)))
		}
		body, message := bodyOf(index), messageOf(index)
		switch told.Scenario {
		case "send-async":
			pending.Add(1)
			err = client.SendAsync(background, func(_ context.Context, result *primitive.SendResult, err error) {
				defer pending.Done()
				if err != nil {
					failed(body, err)
				} else {
					sent(body, result)
				}
			}, message)
			if err != nil {
				pending.Done()
			}
		case "send-oneway":
			if err = client.SendOneWay(background, message); err == nil {
				tell("sent", fields{"body": body})
			}
		case "request":
			ttl := time.Duration(max(told.TimeoutMs, 10_000)) * time.Millisecond
			var reply *primitive.Message
			if reply, err = client.Request(background, ttl, message); err == nil {
				tell("replied", fields{"body": body, "reply": string(reply.Body)})
			}
		default:
			var result *primitive.SendResult
			if result, err = client.SendSync(background, message); err == nil {
				sent(body, result)
			}
		}
		if err != nil {
			failed(body, err)
		}
	}
	wait(&pending)
	must(client.Shutdown())
}

func wait(pending *sync.WaitGroup) {
	all := make(chan struct{})
	go func() { pending.Wait(); close(all) }()
	select {
	case <-all:
	case <-time.After(asyncTimeout):
		failed("", fmt.Errorf("callbacks did not come within %s", asyncTimeout))
	}
}

func sendBatches() {
	client, err := rocketmq.NewProducer(producerOptions(told.Group)...)
	must(err)
	must(client.Start())
	tell("ready", nil)
	size := max(told.Batch, 1)
	for start := 0; start < told.Count; start += size {
		var messages []*primitive.Message
		for index := start; index < min(start+size, told.Count); index++ {
			messages = append(messages, messageOf(index))
		}
		result, err := client.SendSync(context.Background(), messages...)
		for at := range messages {
			if err != nil {
				failed(bodyOf(start+at), err)
				continue
			}
			one := *result
			ids, offsetIDs := strings.Split(result.MsgID, ","), strings.Split(result.OffsetMsgID, ",")
			one.MsgID, one.OffsetMsgID = ids[min(at, len(ids)-1)], offsetIDs[min(at, len(offsetIDs)-1)]
			sent(bodyOf(start+at), &one)
		}
	}
	must(client.Shutdown())
}

// commit and rollback at once; check-commit and check-rollback when the broker asks.
type answers struct{}

func state(answer string) primitive.LocalTransactionState {
	switch answer {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (answers) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return state(answerOf(string(message.Body)))
}

func (answers) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	body := string(message.Body)
	answer := strings.TrimPrefix(answerOf(body), "check-")
	tell("checked", fields{"body": body, "message_id": idOf(message), "answer": answer})
	return state(answer)
}

func sendTransactions() {
	client, err := rocketmq.NewTransactionProducer(answers{}, producerOptions(told.Group)...)
	must(err)
	must(client.Start())
	tell("ready", nil)
	for index := 0; index < told.Count; index++ {
		body := bodyOf(index)
		result, err := client.SendMessageInTransaction(context.Background(), messageOf(index))
		if err != nil {
			failed(body, err)
			continue
		}
		sent(body, result.SendResult)
		if answer := answerOf(body); !strings.HasPrefix(answer, "check-") {
			tell("answered", fields{"body": body, "answer": answer})
		}
	}
	untilStdinIsClosed()
	must(client.Shutdown())
}

func idOf(message *primitive.MessageExt) string {
	if unique := message.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex); unique != "" {
		return unique
	}
	return message.MsgId
}

func received(message *primitive.MessageExt) {
	group := message.GetShardingKey()
	if group == "" {
		group = message.GetProperty("__SHARDINGKEY")
	}
	more := fields{
		"body": string(message.Body), "message_id": idOf(message), "topic": message.Topic,
		"tag": message.GetTags(), "keys": strings.Fields(message.GetKeys()),
		"properties": message.GetProperties(), "attempt": message.ReconsumeTimes + 1,
		"offset": message.QueueOffset, "born_unix_ms": message.BornTimestamp,
		"stored_unix_ms": message.StoreTimestamp, "at_unix_ms": time.Now().UnixMilli(),
	}
	if message.Queue != nil {
		more["queue"] = message.Queue.QueueId
	}
	if group != "" {
		more["message_group"] = group
	}
	tell("received", more)
}

func selector() consumer.MessageSelector {
	if told.Filter == nil {
		return consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	}
	kind := consumer.TAG
	if told.Filter.Type == "sql" {
		kind = consumer.SQL92
	}
	return consumer.MessageSelector{Type: kind, Expression: told.Filter.Expression}
}

func consumerOptions() []consumer.Option {
	from := consumer.ConsumeFromFirstOffset
	if told.From == "last" {
		from = consumer.ConsumeFromLastOffset
	}
	options := []consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{told.Nameserver})),
		consumer.WithGroupName(told.Group),
		consumer.WithInstance(fmt.Sprintf("interop-%d", os.Getpid())),
		consumer.WithVIPChannel(told.VIP),
		consumer.WithConsumeFromWhere(from),
		consumer.WithConsumerOrder(told.Scenario == "push-ordered"),
		consumer.WithSuspendCurrentQueueTimeMillis(200 * time.Millisecond),
	}
	if told.Scenario == "push-broadcasting" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if told.MaxRetries > 0 {
		options = append(options, consumer.WithMaxReconsumeTimes(told.MaxRetries))
	}
	if told.Namespace != "" {
		options = append(options, consumer.WithNamespace(told.Namespace))
	}
	if told.AccessKey != "" {
		options = append(options, consumer.WithCredentials(credentials()))
	}
	return options
}

func push() {
	client, err := rocketmq.NewPushConsumer(consumerOptions()...)
	must(err)
	var replies rocketmq.Producer
	if told.Scenario == "reply" {
		replies, err = rocketmq.NewProducer(producerOptions("interop-replies")...)
		must(err)
		must(replies.Start())
	}
	again := consumer.ConsumeRetryLater
	if told.Scenario == "push-ordered" {
		again = consumer.SuspendCurrentQueueAMoment
	}
	must(client.Subscribe(told.Topic, selector(),
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				received(message)
				if message.ReconsumeTimes < told.FailFirst || replies != nil && !reply(replies, message) {
					return again, nil
				}
				tell("acked", fields{"message_id": idOf(message)})
			}
			return consumer.ConsumeSuccess, nil
		}))
	must(client.Start())
	tell("ready", nil)
	untilStdinIsClosed()
	must(client.Shutdown())
	if replies != nil {
		must(replies.Shutdown())
	}
}

func reply(replies rocketmq.Producer, message *primitive.MessageExt) bool {
	body := string(message.Body)
	answer, err := consumer.CreateReplyMessage(message, []byte("reply-"+body))
	if err == nil {
		answer.Body = []byte("reply-" + body) // the library takes it for properties
		_, err = replies.SendSync(context.Background(), answer)
	}
	if err != nil {
		failed(body, err)
		return false
	}
	tell("answered", fields{"body": body, "answer": "reply"})
	return true
}

func pull() {
	client, err := rocketmq.NewPullConsumer(consumerOptions()...)
	must(err)
	must(client.Subscribe(told.Topic, selector()))
	must(client.Start())
	tell("ready", nil)
	closed := make(chan struct{})
	go func() { untilStdinIsClosed(); close(closed) }()
	for {
		select {
		case <-closed:
			must(client.Shutdown())
			return
		default:
		}
		request, err := client.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		if err != nil {
			failed("", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		result := consumer.ConsumeSuccess
		for _, message := range request.GetMsgList() {
			received(message)
			if message.ReconsumeTimes < told.FailFirst {
				result = consumer.ConsumeRetryLater
			} else {
				tell("acked", fields{"message_id": idOf(message)})
			}
		}
		client.ACK(context.Background(), request, result)
	}
}

func untilStdinIsClosed() {
	io.Copy(io.Discard, os.Stdin)
}

var scenarios = map[string]func(){
	"send": send, "send-async": send, "send-oneway": send, "send-ordered": send, "send-delay": send,
	"request": send, "send-batch": sendBatches, "send-transaction": sendTransactions,
	"push": push, "push-ordered": push, "push-broadcasting": push, "reply": push, "pull": pull,
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	must(err)
	must(json.Unmarshal(text, &told))
	rlog.SetLogLevel("warn") // to stderr
	run := scenarios[told.Scenario]
	isOther := told.Compress != "" && told.Compress != "zlib"
	if run == nil || told.TLS || told.DelayMs > 0 || isOther {
		why := "this client has no " + told.Scenario
		if run != nil {
			why = "this client has no TLS, exact delays, LZ4 or zstd"
		}
		tell("unsupported", fields{"why": why})
		return
	}
	run()
	tell("done", nil)
}
