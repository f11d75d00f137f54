package main

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/IBM/sarama"

	"kbroker.test/clients/lines"
)

var strategies = map[string]sarama.BalanceStrategy{
	"range":      sarama.NewBalanceStrategyRange(),
	"roundrobin": sarama.NewBalanceStrategyRoundRobin(),
	"sticky":     sarama.NewBalanceStrategySticky(),
}

// membership is a member of a group: what it has seen, and the messages it has received.
type membership struct {
	sync.Mutex
	group    sarama.ConsumerGroup
	session  sarama.ConsumerGroupSession
	messages chan *sarama.ConsumerMessage // nil: only noted in seen
	cancel   context.CancelFunc
	ended    chan struct{}
	seen     lines.Member
}

// The program's member between join and leave.
var member *membership

func newMembership(request *lines.Request, messages chan *sarama.ConsumerMessage) (*membership, error) {
	config := settings(request)
	if request.Protocol != "" {
		config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategies[request.Protocol]}
	}
	config.Consumer.Return.Errors = true
	group, err := sarama.NewConsumerGroup(addresses, request.Group, config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	made := &membership{group: group, messages: messages, cancel: cancel, ended: make(chan struct{})}
	made.seen = lines.Member{Owned: []int32{}, Read: [][2]int64{}, Errors: []string{}}
	go func() {
		for failure := range group.Errors() {
			made.failed(failure)
		}
	}()
	go func() {
		defer close(made.ended)
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{request.Topic}, made); err != nil {
				made.failed(err)
			}
		}
	}()
	return made, nil
}

func (member *membership) failed(err error) {
	member.Lock()
	defer member.Unlock()
	member.seen.Errors = append(member.seen.Errors, err.Error())
}

// Setup notes a new assignment.
func (member *membership) Setup(session sarama.ConsumerGroupSession) error {
	member.Lock()
	defer member.Unlock()
	member.session = session
	member.seen.Rebalances++
	member.seen.Owned = []int32{}
	for _, partitions := range session.Claims() {
		member.seen.Owned = append(member.seen.Owned, partitions...)
	}
	return nil
}

// Cleanup notes that the assignment is gone.
func (member *membership) Cleanup(sarama.ConsumerGroupSession) error {
	member.Lock()
	defer member.Unlock()
	member.session = nil
	member.seen.Owned = []int32{}
	return nil
}

// ConsumeClaim reads one partition until the assignment ends.
func (member *membership) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case record := <-claim.Messages():
			if record == nil {
				return nil
			}
			member.Lock()
			member.seen.Read = append(member.seen.Read, [2]int64{int64(record.Partition), record.Offset})
			member.Unlock()
			session.MarkMessage(record, "")
			if member.messages != nil {
				select {
				case member.messages <- record:
				case <-session.Context().Done():
					return nil
				}
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func (member *membership) commit() error {
	member.Lock()
	defer member.Unlock()
	if member.session == nil {
		return errors.New("no assignment")
	}
	member.session.Commit()
	return nil
}

func (member *membership) close() error {
	member.cancel()
	<-member.ended
	return member.group.Close()
}

func join(request *lines.Request) (any, error) {
	var err error
	member, err = newMembership(request, nil)
	return nil, err
}

func memberSeen(*lines.Request) (any, error) {
	member.Lock()
	defer member.Unlock()
	seen := member.seen
	seen.Owned = slices.Clone(seen.Owned)
	seen.Read = slices.Clone(seen.Read)
	return seen, nil
}

func commitRead(*lines.Request) (any, error) { return nil, member.commit() }

func leave(*lines.Request) (any, error) { return nil, member.close() }

func readSubscribed(request *lines.Request) (any, error) {
	reader, err := newMembership(request, make(chan *sarama.ConsumerMessage))
	if err != nil {
		return nil, err
	}
	found, err := take(reader.messages, request.Count)
	if err == nil {
		err = reader.commit()
	}
	read := []lines.Message{}
	for _, record := range found {
		read = append(read, message(record))
	}
	return read, errors.Join(err, reader.close())
}
