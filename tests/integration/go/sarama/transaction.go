package main

import (
	"errors"

	"github.com/IBM/sarama"

	"kbroker.test/clients/lines"
)

var transactional = map[string]sarama.SyncProducer{}

func transactionalProducer(request *lines.Request) (sarama.SyncProducer, error) {
	if known := transactional[request.ID]; known != nil {
		return known, nil
	}
	config := settings(request)
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1
	config.Producer.Transaction.ID = request.ID
	made, err := sarama.NewSyncProducer(addresses, config)
	if err == nil {
		transactional[request.ID] = made
	}
	return made, err
}

func end(client sarama.SyncProducer, how string) error {
	switch how {
	case "commit":
		return client.CommitTxn()
	case "abort":
		return client.AbortTxn()
	}
	return nil
}

// transact sends in one transaction and ends it: "commit", "abort", or "" to leave it open.
func transact(request *lines.Request) (any, error) {
	client, err := transactionalProducer(request)
	if err != nil {
		return nil, err
	}
	if err := client.BeginTxn(); err != nil {
		return nil, err
	}
	if err := delivered(client, records(request.Topic, request.Messages)); err != nil {
		return nil, err
	}
	return nil, end(client, request.End)
}

// pipe copies messages of one topic to another in one transaction, with the offsets of what it read.
func pipe(request *lines.Request) (any, error) {
	request.Messages = []lines.Message{{}} // no partitions given: by key
	client, err := transactionalProducer(request)
	if err != nil {
		return nil, err
	}
	reader, err := newMembership(request, make(chan *sarama.ConsumerMessage))
	if err != nil {
		return nil, err
	}
	err = copied(request, client, reader)
	return err == nil && request.End == "commit", errors.Join(err, reader.close())
}

func copied(request *lines.Request, client sarama.SyncProducer, reader *membership) error {
	found, err := take(reader.messages, request.Count)
	if err != nil {
		return err
	}
	if err := client.BeginTxn(); err != nil {
		return err
	}
	var copies []*sarama.ProducerMessage
	for _, record := range found {
		copies = append(copies, &sarama.ProducerMessage{
			Topic: request.To, Key: encoder(record.Key), Value: encoder(record.Value),
		})
	}
	if err := delivered(client, copies); err != nil {
		return err
	}
	for _, record := range found {
		if err := client.AddMessageToTxn(record, request.Group, nil); err != nil {
			return err
		}
	}
	return end(client, request.End)
}
