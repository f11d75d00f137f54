package main

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"kbroker.test/clients/lines"
)

var transactional = map[string]*kgo.Client{}

// transact sends in one transaction and ends it: "commit", "abort", or "" to leave it open.
func transact(request *lines.Request) (any, error) {
	client, known := transactional[request.ID]
	if !known {
		var err error
		client, err = open(kgo.TransactionalID(request.ID), partitioner(request.Messages))
		if err != nil {
			return nil, err
		}
		transactional[request.ID] = client
	}
	ctx, cancel := bounded()
	defer cancel()
	if err := client.BeginTransaction(); err != nil {
		return nil, err
	}
	if err := client.ProduceSync(ctx, records(request.Topic, request.Messages)...).FirstErr(); err != nil {
		return nil, err
	}
	if request.End == "" {
		return nil, nil
	}
	return nil, client.EndTransaction(ctx, kgo.TransactionEndTry(request.End == "commit"))
}

// pipe copies messages of one topic to another in one transaction, with the offsets of what it read.
func pipe(request *lines.Request) (any, error) {
	session, err := kgo.NewGroupTransactSession(append(groupOptions(request),
		kgo.SeedBrokers(bootstrap),
		kgo.TransactionalID(request.ID),
		kgo.RequireStableFetchOffsets(),
	)...)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	ctx, cancel := bounded()
	defer cancel()
	found, err := poll(ctx, session.Client(), request.Count)
	if err != nil {
		return nil, err
	}
	if err := session.Begin(); err != nil {
		return nil, err
	}
	copies := make([]*kgo.Record, len(found))
	for at, record := range found {
		copies[at] = &kgo.Record{Topic: request.To, Key: record.Key, Value: record.Value}
	}
	if err := session.ProduceSync(ctx, copies...).FirstErr(); err != nil {
		return nil, err
	}
	committed, err := session.End(ctx, kgo.TransactionEndTry(request.End == "commit"))
	return committed, err
}
