package main

import (
	"errors"
	"maps"
	"slices"

	"github.com/IBM/sarama"

	"kbroker.test/clients/lines"
)

// administer runs one call with an admin client of its own.
func administer[Result any](request *lines.Request, call func(sarama.ClusterAdmin) (Result, error)) (any, error) {
	admin, err := sarama.NewClusterAdmin(addresses, settings(request))
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	return call(admin)
}

func create(request *lines.Request) (any, error) {
	return administer(request, func(admin sarama.ClusterAdmin) (any, error) {
		configs := map[string]*string{}
		for name, value := range request.Configs {
			configs[name] = &value
		}
		detail := &sarama.TopicDetail{
			NumPartitions: request.Partitions, ReplicationFactor: 1, ConfigEntries: configs,
		}
		return nil, admin.CreateTopic(request.Topic, detail, request.ValidateOnly)
	})
}

func topics(request *lines.Request) (any, error) {
	return administer(request, func(admin sarama.ClusterAdmin) ([]string, error) {
		listed, err := admin.ListTopics()
		return slices.AppendSeq([]string{}, maps.Keys(listed)), err
	})
}

func describe(request *lines.Request) (any, error) {
	return administer(request, func(admin sarama.ClusterAdmin) (int, error) {
		described, err := admin.DescribeTopics([]string{request.Topic})
		if err != nil {
			return 0, err
		}
		if described[0].Err != sarama.ErrNoError {
			return 0, described[0].Err
		}
		return len(described[0].Partitions), nil
	})
}

func grow(request *lines.Request) (any, error) {
	return administer(request, func(admin sarama.ClusterAdmin) (any, error) {
		return nil, admin.CreatePartitions(request.Topic, request.Partitions, nil, false)
	})
}

func deleteTopic(request *lines.Request) (any, error) {
	return administer(request, func(admin sarama.ClusterAdmin) (any, error) {
		return nil, admin.DeleteTopic(request.Topic)
	})
}

func config(request *lines.Request) (any, error) {
	return administer(request, func(admin sarama.ClusterAdmin) (any, error) {
		entries, err := admin.DescribeConfig(sarama.ConfigResource{
			Type: sarama.TopicResource, Name: request.Topic, ConfigNames: []string{request.Name},
		})
		if err != nil {
			return nil, err
		}
		if len(entries) != 1 {
			return nil, errors.New("not one config")
		}
		return entries[0].Value, nil
	})
}

func alter(request *lines.Request) (any, error) {
	return administer(request, func(admin sarama.ClusterAdmin) (any, error) {
		changes := map[string]sarama.IncrementalAlterConfigsEntry{}
		for name, value := range request.Configs {
			changes[name] = sarama.IncrementalAlterConfigsEntry{
				Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value,
			}
		}
		return nil, admin.IncrementalAlterConfig(sarama.TopicResource, request.Topic, changes, false)
	})
}

func startOffset(request *lines.Request) (any, error) {
	client, err := sarama.NewClient(addresses, settings(request))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.GetOffset(request.Topic, 0, sarama.OffsetOldest)
}

func deleteRecords(request *lines.Request) (any, error) {
	return administer(request, func(admin sarama.ClusterAdmin) (int64, error) {
		return request.Offset, admin.DeleteRecords(request.Topic, map[int32]int64{0: request.Offset})
	})
}

func groups(request *lines.Request) (any, error) {
	return administer(request, func(admin sarama.ClusterAdmin) ([]string, error) {
		listed, err := admin.ListConsumerGroups()
		return slices.AppendSeq([]string{}, maps.Keys(listed)), err
	})
}

func group(request *lines.Request) (any, error) {
	return administer(request, func(admin sarama.ClusterAdmin) (lines.Group, error) {
		described, err := admin.DescribeConsumerGroups([]string{request.Group})
		if err != nil {
			return lines.Group{}, err
		}
		if described[0].Err != sarama.ErrNoError {
			return lines.Group{}, described[0].Err
		}
		return lines.Group{State: described[0].State, Members: len(described[0].Members)}, nil
	})
}

func deleteGroup(request *lines.Request) (any, error) {
	return administer(request, func(admin sarama.ClusterAdmin) (any, error) {
		return nil, admin.DeleteConsumerGroup(request.Group)
	})
}

func committed(request *lines.Request) (any, error) {
	return administer(request, func(admin sarama.ClusterAdmin) (map[int32]int64, error) {
		answer, err := admin.ListConsumerGroupOffsets(request.Group, nil)
		if err != nil {
			return nil, err
		}
		found := map[int32]int64{}
		for partition, block := range answer.Blocks[request.Topic] {
			if block.Err != sarama.ErrNoError {
				return nil, block.Err
			}
			found[partition] = block.Offset
		}
		return found, nil
	})
}

func setOffset(request *lines.Request) (any, error) {
	return administer(request, func(admin sarama.ClusterAdmin) (any, error) {
		answer, err := admin.AlterConsumerGroupOffsets(
			request.Group, map[string]map[int32]sarama.OffsetAndMetadata{request.Topic: {0: {Offset: request.Offset}}}, nil,
		)
		if err != nil {
			return nil, err
		}
		for _, code := range answer.Errors[request.Topic] {
			if code != sarama.ErrNoError {
				return nil, code
			}
		}
		return nil, nil
	})
}
