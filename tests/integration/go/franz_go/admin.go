package main

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kadm"

	"kbroker.test/clients/lines"
)

// administer runs one call with an admin client of its own.
func administer[Result any](
	call func(context.Context, *kadm.Client) (Result, error),
) (any, error) {
	client, err := open()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := bounded()
	defer cancel()
	return call(ctx, kadm.NewClient(client))
}

func create(request *lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) (any, error) {
		configs := map[string]*string{}
		for name, value := range request.Configs {
			configs[name] = kadm.StringPtr(value)
		}
		if request.ValidateOnly {
			answers, err := admin.ValidateCreateTopics(ctx, request.Partitions, 1, configs, request.Topic)
			return nil, errors.Join(err, answers.Error())
		}
		answer, err := admin.CreateTopic(ctx, request.Partitions, 1, configs, request.Topic)
		return nil, errors.Join(err, answer.Err)
	})
}

func topics(*lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) ([]string, error) {
		details, err := admin.ListTopics(ctx)
		return details.Names(), err
	})
}

func describe(request *lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) (int, error) {
		details, err := admin.ListTopics(ctx, request.Topic)
		return len(details[request.Topic].Partitions), errors.Join(err, details.Error())
	})
}

func grow(request *lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) (any, error) {
		answers, err := admin.UpdatePartitions(ctx, int(request.Partitions), request.Topic)
		return nil, errors.Join(err, answers.Error())
	})
}

func deleteTopic(request *lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) (any, error) {
		answer, err := admin.DeleteTopic(ctx, request.Topic)
		return nil, errors.Join(err, answer.Err)
	})
}

func config(request *lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) (any, error) {
		resources, err := admin.DescribeTopicConfigs(ctx, request.Topic)
		if err != nil {
			return nil, err
		}
		resource, err := resources.On(request.Topic, nil)
		if err = errors.Join(err, resource.Err); err != nil {
			return nil, err
		}
		for _, config := range resource.Configs {
			if config.Key == request.Name {
				return config.MaybeValue(), nil
			}
		}
		return nil, errors.New("no such config")
	})
}

func alter(request *lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) (any, error) {
		var changes []kadm.AlterConfig
		for name, value := range request.Configs {
			changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: kadm.StringPtr(value)})
		}
		answers, err := admin.AlterTopicConfigs(ctx, changes, request.Topic)
		for _, answer := range answers {
			err = errors.Join(err, answer.Err)
		}
		return nil, err
	})
}

func startOffset(request *lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) (int64, error) {
		offsets, err := admin.ListStartOffsets(ctx, request.Topic)
		found, _ := offsets.Lookup(request.Topic, 0)
		return found.Offset, errors.Join(err, offsets.Error())
	})
}

func deleteRecords(request *lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) (int64, error) {
		before := kadm.Offsets{}
		before.AddOffset(request.Topic, 0, request.Offset, -1)
		answers, err := admin.DeleteRecords(ctx, before)
		found, _ := answers.Lookup(request.Topic, 0)
		return found.LowWatermark, errors.Join(err, answers.Error())
	})
}

func groups(*lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) ([]string, error) {
		listed, err := admin.ListGroups(ctx)
		return listed.Groups(), err
	})
}

func group(request *lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) (lines.Group, error) {
		described, err := admin.DescribeGroups(ctx, request.Group)
		found := described[request.Group]
		return lines.Group{State: found.State, Members: len(found.Members)}, errors.Join(err, described.Error())
	})
}

func deleteGroup(request *lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) (any, error) {
		answer, err := admin.DeleteGroup(ctx, request.Group)
		return nil, errors.Join(err, answer.Err)
	})
}

func committed(request *lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) (map[int32]int64, error) {
		fetched, err := admin.FetchOffsets(ctx, request.Group)
		found := map[int32]int64{}
		for partition, offset := range fetched.Offsets()[request.Topic] {
			found[partition] = offset.At
		}
		return found, errors.Join(err, fetched.Error())
	})
}

func setOffset(request *lines.Request) (any, error) {
	return administer(func(ctx context.Context, admin *kadm.Client) (any, error) {
		offsets := kadm.Offsets{}
		offsets.AddOffset(request.Topic, 0, request.Offset, -1)
		answers, err := admin.CommitOffsets(ctx, request.Group, offsets)
		return nil, errors.Join(err, answers.Error())
	})
}
