// The franz-go client as a program. Argument: the broker's address. It serves the requests of package lines.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kbroker.test/clients/lines"
)

var bootstrap = os.Args[1]
var kept *kgo.Client

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func open(options ...kgo.Opt) (*kgo.Client, error) {
	quick := []kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
	}
	return kgo.NewClient(append(quick, options...)...)
}

func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), lines.Deadline)
}

func partitioner(messages []lines.Message) kgo.Opt {
	if len(messages) > 0 && messages[0].Partition == nil {
		return kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil))
	}
	return kgo.RecordPartitioner(kgo.ManualPartitioner())
}

func producer(request *lines.Request) (*kgo.Client, error) {
	if request.Keep && kept != nil {
		return kept, nil
	}
	options := []kgo.Opt{
		partitioner(request.Messages),
		kgo.ProducerBatchCompression(codecs[request.Codec]),
		kgo.ProducerBatchMaxBytes(int32(request.BatchBytes())),
	}
	switch request.Acks {
	case "0":
		options = append(options, kgo.RequiredAcks(kgo.NoAck()))
	case "1":
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()))
	}
	if !request.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1))
	}
	client, err := open(options...)
	if request.Keep {
		kept = client
	}
	return client, err
}

func records(topic string, messages []lines.Message) []*kgo.Record {
	made := make([]*kgo.Record, len(messages))
	for at, message := range messages {
		record := &kgo.Record{Topic: topic, Key: message.Key, Value: message.Value}
		if message.Partition != nil {
			record.Partition = *message.Partition
		}
		if message.Timestamp != nil {
			record.Timestamp = time.UnixMilli(*message.Timestamp)
		}
		for _, header := range message.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: header.Name, Value: header.Value})
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
	ctx, cancel := bounded()
	defer cancel()
	return nil, client.ProduceSync(ctx, records(request.Topic, request.Messages)...).FirstErr()
}

func message(record *kgo.Record) lines.Message {
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
		read.Headers = append(read.Headers, lines.Header{Name: header.Key, Value: header.Value})
	}
	return read
}

func isolation(request *lines.Request) kgo.Opt {
	if request.Committed {
		return kgo.FetchIsolationLevel(kgo.ReadCommitted())
	}
	return kgo.FetchIsolationLevel(kgo.ReadUncommitted())
}

// poll returns the next count records.
func poll(ctx context.Context, client *kgo.Client, count int) ([]*kgo.Record, error) {
	var read []*kgo.Record
	for len(read) < count {
		fetches := client.PollRecords(ctx, count-len(read))
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%d of %d messages did not come", count-len(read), count)
		}
		for _, failed := range fetches.Errors() {
			return nil, failed.Err
		}
		read = append(read, fetches.Records()...)
	}
	return read, nil
}

func polled(client *kgo.Client, count int) ([]lines.Message, error) {
	ctx, cancel := bounded()
	defer cancel()
	read := []lines.Message{}
	found, err := poll(ctx, client, count)
	for _, record := range found {
		read = append(read, message(record))
	}
	return read, err
}

func readAssigned(request *lines.Request) (any, error) {
	from := map[int32]kgo.Offset{}
	for partition := range request.Counts {
		from[partition] = kgo.NewOffset().At(0)
	}
	client, err := open(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{request.Topic: from}), isolation(request),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return polled(client, request.Total())
}

func readSubscribed(request *lines.Request) (any, error) {
	client, err := open(groupOptions(request)...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	read, err := polled(client, request.Count)
	if err != nil {
		return nil, err
	}
	ctx, cancel := bounded()
	defer cancel()
	if err := client.CommitUncommittedOffsets(ctx); err != nil {
		return nil, err
	}
	return read, client.LeaveGroupContext(ctx)
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
