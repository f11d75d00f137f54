"""``topic create``, ``delete`` and ``alter``."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import click

from kbroker.cli.config import config_values
from kbroker.cli.existing_topics import existing_topics, topic_names
from kbroker.cli.failure import check, fail_with, reason, unknown
from kbroker.cli.numbers import Integer
from kbroker.cli.output import show_count
from kbroker.cli.resource_configs import alter_configs, nearest_config
from kbroker.cli.session import Session, with_session
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.topics.k19_create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.protocol.apis.topics.k20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from kbroker.protocol.apis.topics.k37_create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kbroker.topic_config import TOPIC_CONFIGS

TIMEOUT_MS = 30_000
PARTITIONS = Integer(1, 2**31 - 1)
REPLICAS = Integer(1, 2**15 - 1)
ONE_REPLICA = "its replication factor is 1: the object store replicates the data"
THE_BROKERS = -1  # number of partitions or replicas: as the broker's configs say

names_argument = click.argument("names", metavar="NAME...", nargs=-1, required=True)


@click.command()
@names_argument
@click.option("--partitions", "-p", type=PARTITIONS, help="number of partitions (default: the broker's num.partitions)")
@click.option("--replication-factor", "-r", type=REPLICAS, help="number of replicas (default: the broker's)")
@click.option(
    "--config", "-c", "configs", multiple=True, metavar="CONFIG=VALUE", help="a topic config; may be repeated"
)
@click.option("--if-not-exists", is_flag=True, help="a topic that exists already is no failure")
@with_session
def create(
    session: Session,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    """Creates topics."""
    values = config_values("--config", configs)
    topics = [
        CreatableTopic(
            name=name,
            num_partitions=partitions or THE_BROKERS,
            replication_factor=replication_factor or THE_BROKERS,
            configs=[CreatableTopicConfig(name=config, value=value) for config, value in values.items()],
        )
        for name in dict.fromkeys(names)
    ]
    request = CreateTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS)
    response = session.client.controller(request, lambda response: [topic.error_code for topic in response.topics])
    failures = []
    for topic in response.topics:
        if topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
            session.output.note(f"{topic.name} exists already")
        elif topic.error_code:
            hint = nearest_config(values, TOPIC_CONFIGS) if topic.error_code == ErrorCode.INVALID_CONFIG else ""
            failures.append(f"{topic.name}: {reason(topic.error_code, topic.error_message)}{hint}")
        else:
            if replication_factor and topic.replication_factor == 1 != replication_factor:
                session.output.note(f"{topic.name}: {ONE_REPLICA}")
            session.output.done(
                f"created {topic.name} with {show_count(topic.num_partitions, 'partition')}",
                topic=topic.name,
                topic_id=urlsafe_b64encode(topic.topic_id).decode().rstrip("="),
                partitions=topic.num_partitions,
                replication_factor=topic.replication_factor,
            )
    fail_with(failures)


@click.command()
@names_argument
@click.option("--if-exists", is_flag=True, help="a topic that does not exist is no failure")
@with_session
def delete(session: Session, names: tuple[str, ...], if_exists: bool) -> None:
    """Deletes topics and their data."""
    asked = list(dict.fromkeys(names))
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in asked], topic_names=asked, timeout_ms=TIMEOUT_MS
    )
    response = session.client.controller(request, lambda response: [each.error_code for each in response.responses])
    failures = []
    for topic in response.responses:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            if if_exists:
                session.output.note(f"there is no topic {topic.name}")
            else:
                failures.append(unknown("topic", topic.name, topic_names(session.client)).message)
        elif topic.error_code:
            failures.append(f"{topic.name}: {reason(topic.error_code, topic.error_message)}")
        else:
            session.output.done(f"deleted {topic.name}", topic=topic.name, deleted=True)
    fail_with(failures)


@click.command()
@click.argument("name")
@click.option("--partitions", "-p", type=PARTITIONS, help="new number of partitions; it cannot become lower")
@click.option("--config", "-c", "configs", multiple=True, metavar="CONFIG=VALUE", help="a new value; may be repeated")
@click.option(
    "--delete-config", "deleted", multiple=True, metavar="CONFIG", help="back to the default; may be repeated"
)
@with_session
def alter(
    session: Session, name: str, partitions: int | None, configs: tuple[str, ...], deleted: tuple[str, ...]
) -> None:
    """Changes configs of a topic, then its number of partitions."""
    values, deleted = config_values("--config", configs), tuple(dict.fromkeys(deleted))
    if partitions is None and not values and not deleted:
        raise click.UsageError("nothing to do: give --partitions, --config or --delete-config")
    if both := sorted(values.keys() & set(deleted)):
        raise click.UsageError(f"{both[0]} is both set and deleted")
    existing_topics(session.client, [name])
    if values or deleted:
        alter_configs(session.client, "topic", name, values, deleted)
        said = [f"{config}={value}" for config, value in values.items()] + [f"{config} deleted" for config in deleted]
        session.output.done(f"altered {name}: {', '.join(said)}", topic=name, set=values, deleted=list(deleted))
    if partitions is not None:
        _add_partitions(session, name, partitions)


@click.command(hidden=True)
@click.argument("name")
@click.argument("count", type=PARTITIONS)
@with_session
def partitions(session: Session, name: str, count: int) -> None:
    """Another name of `topic alter NAME --partitions COUNT`."""
    existing_topics(session.client, [name])
    _add_partitions(session, name, count)


def _add_partitions(session: Session, name: str, count: int) -> None:
    wanted = CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS)
    response = session.client.controller(request, lambda response: [each.error_code for each in response.results])
    check(response.results[0].error_code, name, response.results[0].error_message)
    session.output.done(f"{name} has {show_count(count, 'partition')}", topic=name, partitions=count)
