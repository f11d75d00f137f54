"""``kbroker topic``: create, list, describe, delete, and more partitions."""

from __future__ import annotations

import click

from kbroker.cli.client import bootstrap_option, check, connected
from kbroker.option_values import ConfigError, parse_assignments
from kbroker.protocol.apis.k03_metadata import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.apis.k19_create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.protocol.apis.k20_delete_topics import DeleteTopicsRequest
from kbroker.protocol.apis.k37_create_partitions import CreatePartitionsRequest, CreatePartitionsTopic


@click.group()
def command() -> None:
    """Topics of a running broker."""


@command.command()
@click.argument("name")
@click.option("--partitions", "-p", default=-1, help="number of partitions (default: the broker's)")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="a topic config")
@bootstrap_option
def create(name: str, partitions: int, configs: tuple[str, ...], bootstrap: str) -> None:
    """Creates a topic."""
    try:
        pairs = parse_assignments(list(configs))
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=-1,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in pairs.items()],
    )
    with connected(bootstrap) as client:
        result = client.call(CreateTopicsRequest(topics=[topic])).topics[0]
        check(result.error_code, name, result.error_message)
        click.echo(f"created {name} with {result.num_partitions} partitions")


@command.command("list")
@bootstrap_option
def list_topics(bootstrap: str) -> None:
    """Names of all topics, a line each."""
    with connected(bootstrap) as client:
        for topic in sorted(client.call(MetadataRequest(topics=None)).topics, key=lambda topic: topic.name):
            click.echo(topic.name)


@command.command()
@click.argument("name")
@bootstrap_option
def describe(name: str, bootstrap: str) -> None:
    """Partitions of a topic with leader and leader epoch."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    with connected(bootstrap) as client:
        topic = client.call(request).topics[0]
        check(topic.error_code, name)
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index):
            label = f"{name}-{partition.partition_index}"
            check(partition.error_code, label)
            click.echo(f"{label} leader {partition.leader_id} epoch {partition.leader_epoch}")


@command.command()
@click.argument("name")
@click.argument("count", type=int)
@bootstrap_option
def partitions(name: str, count: int, bootstrap: str) -> None:
    """Raises the number of partitions of a topic to COUNT."""
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)], timeout_ms=30_000
    )
    with connected(bootstrap) as client:
        result = client.call(request).results[0]
        check(result.error_code, name, result.error_message)


@command.command()
@click.argument("name")
@bootstrap_option
def delete(name: str, bootstrap: str) -> None:
    """Deletes a topic and its data."""
    with connected(bootstrap) as client:
        result = client.call(DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000)).responses[0]
        check(result.error_code, name)
        click.echo(f"deleted {name}")
