package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kbroker.test/clients/lines"
)

var balancers = map[string]kgo.GroupBalancer{
	"range":              kgo.RangeBalancer(),
	"roundrobin":         kgo.RoundRobinBalancer(),
	"cooperative-sticky": kgo.CooperativeStickyBalancer(),
}

// groupOptions are those of every consumer that subscribes: from the beginning, commits only when told.
// The protocol is an assignor of the classic protocol, or "consumer".
func groupOptions(request *lines.Request) []kgo.Opt {
	options := []kgo.Opt{
		kgo.ConsumerGroup(request.Group),
		kgo.ConsumeTopics(request.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		isolation(request),
	}
	if request.Instance != "" {
		options = append(options, kgo.InstanceID(request.Instance))
	}
	switch request.Protocol {
	case "consumer":
		return append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))
	case "":
		return options
	}
	return append(options,
		kgo.Balancers(balancers[request.Protocol]),
		kgo.SessionTimeout(10*time.Second),
		kgo.HeartbeatInterval(500*time.Millisecond),
	)
}

// member is this program's membership; one at a time.
var member struct {
	sync.Mutex
	client *kgo.Client
	ended  chan struct{}
	seen   lines.Member
}

func own(change func([]int32, int32) []int32) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, given map[string][]int32) {
		member.Lock()
		defer member.Unlock()
		member.seen.Rebalances++
		for _, partitions := range given {
			for _, partition := range partitions {
				member.seen.Owned = change(member.seen.Owned, partition)
			}
		}
	}
}

func with(owned []int32, partition int32) []int32 {
	return append(without(owned, partition), partition)
}

func without(owned []int32, partition int32) []int32 {
	return slices.DeleteFunc(owned, func(other int32) bool { return other == partition })
}

func join(request *lines.Request) (any, error) {
	client, err := open(append(groupOptions(request),
		kgo.OnPartitionsAssigned(own(with)),
		kgo.OnPartitionsRevoked(own(without)),
		kgo.OnPartitionsLost(own(without)),
	)...)
	if err != nil {
		return nil, err
	}
	member.client, member.ended = client, make(chan struct{})
	member.seen = lines.Member{Owned: []int32{}, Read: [][2]int64{}, Errors: []string{}}
	go consume(client, member.ended)
	return nil, nil
}

func consume(client *kgo.Client, ended chan struct{}) {
	defer close(ended)
	for {
		fetches := client.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		member.Lock()
		for _, failed := range fetches.Errors() {
			member.seen.Errors = append(member.seen.Errors, failed.Err.Error())
		}
		for _, record := range fetches.Records() {
			member.seen.Read = append(member.seen.Read, [2]int64{int64(record.Partition), record.Offset})
		}
		member.Unlock()
	}
}

func memberSeen(*lines.Request) (any, error) {
	member.Lock()
	defer member.Unlock()
	seen := member.seen
	seen.Owned = slices.Clone(seen.Owned)
	seen.Read = slices.Clone(seen.Read)
	return seen, nil
}

func commitRead(*lines.Request) (any, error) {
	ctx, cancel := bounded()
	defer cancel()
	return nil, member.client.CommitUncommittedOffsets(ctx)
}

func leave(*lines.Request) (any, error) {
	member.client.Close()
	<-member.ended
	return nil, nil
}
