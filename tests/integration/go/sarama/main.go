// The sarama client as a program. Arguments: the broker's address, and the Kafka version to assume ("default" or
// "max"). It serves the requests of package lines.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"

	"kbroker.test/clients/lines"
)

var addresses = []string{os.Args[1]}
var kept sarama.SyncProducer

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

var acks = map[string]sarama.RequiredAcks{
	"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll,
}

func settings(request *lines.Request) *sarama.Config {
	config := sarama.NewConfig()
	if os.Args[2] == "max" {
		config.Version = sarama.MaxVersion
	}
	config.Producer.Return.Successes = true
	config.Producer.MaxMessageBytes = request.BatchBytes()
	config.Producer.Retry.Max = 200
	config.Producer.Retry.Backoff = 100 * time.Millisecond
	config.Metadata.Retry.Max = 200
	config.Metadata.Retry.Backoff = 100 * time.Millisecond
	config.Producer.Partitioner = sarama.NewManualPartitioner
	if len(request.Messages) > 0 && request.Messages[0].Partition == nil {
		config.Producer.Partitioner = sarama.NewHashPartitioner
	}
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	config.Consumer.Group.InstanceId = request.Instance
	if request.Committed {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	return config
}

func producer(request *lines.Request) (sarama.SyncProducer, error) {
	if request.Keep && kept != nil {
		return kept, nil
	}
	config := settings(request)
	config.Producer.Compression = codecs[request.Codec]
	config.Producer.RequiredAcks = acks[request.Acks]
	if request.Idempotent {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	made, err := sarama.NewSyncProducer(addresses, config)
	if request.Keep {
		kept = made
	}
	return made, err
}

func encoder(value []byte) sarama.Encoder {
	if value == nil {
		return nil
	}
	return sarama.ByteEncoder(value)
}

func records(topic string, messages []lines.Message) []*sarama.ProducerMessage {
	made := make([]*sarama.ProducerMessage, len(messages))
	for at, message := range messages {
		record := &sarama.ProducerMessage{Topic: topic, Key: encoder(message.Key), Value: encoder(message.Value)}
		if message.Partition != nil {
			record.Partition = *message.Partition
		}
		if message.Timestamp != nil {
			record.Timestamp = time.UnixMilli(*message.Timestamp)
		}
		for _, header := range message.Headers {
			record.Headers = append(record.Headers,
				sarama.RecordHeader{Key: []byte(header.Name), Value: header.Value})
		}
		made[at] = record
	}
	return made
}

func send(request *lines.Request) (any, error) {
	client, err := producer(request)
	if err != nil {
		return nil, err
	}
	if !request.Keep {
		defer client.Close()
	}
	return nil, delivered(client, records(request.Topic, request.Messages))
}

func delivered(client sarama.SyncProducer, messages []*sarama.ProducerMessage) error {
	err := client.SendMessages(messages)
	var failed sarama.ProducerErrors
	if errors.As(err, &failed) {
		return failed[0].Err
	}
	return err
}

func message(record *sarama.ConsumerMessage) lines.Message {
	timestamp := record.Timestamp.UnixMilli()
	read := lines.Message{
		Partition: &record.Partition,
		Offset:    record.Offset,
		Key:       record.Key,
		Value:     record.Value,
		Headers:   []lines.Header{},
		Timestamp: &timestamp,
	}
	for _, header := range record.Headers {
		read.Headers = append(read.Headers, lines.Header{Name: string(header.Key), Value: header.Value})
	}
	return read
}

func readAssigned(request *lines.Request) (any, error) {
	consumer, err := sarama.NewConsumer(addresses, settings(request))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	read := []lines.Message{}
	for partition, count := range request.Counts {
		part, err := consumer.ConsumePartition(request.Topic, partition, 0)
		if err != nil {
			return nil, err
		}
		found, err := take(part.Messages(), count)
		if err := errors.Join(err, part.Close()); err != nil {
			return nil, err
		}
		for _, record := range found {
			read = append(read, message(record))
		}
	}
	return read, nil
}

// take receives count messages.
func take(from <-chan *sarama.ConsumerMessage, count int) ([]*sarama.ConsumerMessage, error) {
	late := time.After(lines.Deadline)
	taken := make([]*sarama.ConsumerMessage, 0, count)
	for len(taken) < count {
		select {
		case record := <-from:
			if record == nil {
				return nil, errors.New("the consumer ended")
			}
			taken = append(taken, record)
		case <-late:
			return nil, fmt.Errorf("%d of %d messages did not come", count-len(taken), count)
		}
	}
	return taken, nil
}

func main() {
	lines.Serve(map[string]lines.Handler{
		"send": send, "read": readAssigned, "read_group": readSubscribed,
		"join": join, "member": memberSeen, "commit": commitRead, "leave": leave,
		"transact": transact, "pipe": pipe,
		"create": create, "topics": topics, "describe": describe, "grow": grow, "delete": deleteTopic,
		"config": config, "alter": alter, "start": startOffset, "delete_records": deleteRecords,
		"groups": groups, "group": group, "delete_group": deleteGroup,
		"committed": committed, "set_offset": setOffset,
	})
}
