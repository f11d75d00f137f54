"""A broker in the test's own process, which moves its leaderships as a controller would."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from confluent_kafka.admin import AdminClient, NewTopic
from until import until

from kbroker._fast.partition.partition import Partition
from kbroker.app.broker import Broker
from kbroker.app.config import load_config
from kbroker.app.stopping import EXIT_CLEAN, Stopping
from kbroker.log.new_leadership import Leadership
from kbroker.storage.manifest.tails import EVERY_EPOCH

DEADLINE_SECONDS = 60.0
_serial = itertools.count()


class MovingBroker:
    """A started broker on a folder, and its leaderships. `kafka`: broker configs by Kafka's names."""

    def __init__(self, folder: Path, *, kafka: Sequence[str] = (), **options: object) -> None:
        settings = {
            "data_dir": str(folder / "data"),
            "object_store": f"file:{folder / 'bucket'}",
            "listen": "127.0.0.1:0",
            "memory_bytes": "128MiB",
            "wal_bytes": "256MiB",
            **options,
        }
        self.broker = Broker(load_config(settings, kafka, environ={}))
        self.broker.start()
        self.bootstrap = f"127.0.0.1:{self.broker.address[1]}"
        self.moves = 0
        self.epochs = itertools.count(self.broker.logs.leader_epoch + 1)

    def stop(self) -> int:
        """The exit code."""
        return Stopping(self.broker).run()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.stop() == EXIT_CLEAN

    def create(self, partitions: int, **configs: str) -> str:
        """The name of a new topic."""
        name = f"moved-{next(_serial)}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1, config=configs)])[name].result(DEADLINE_SECONDS)
        return name

    def partition(self, topic: str, index: int) -> Partition:
        """Of the last leadership."""
        return self.broker.logs.by_name[topic].partitions[index]

    def move(self, topic: str, index: int, *, has_tail: bool) -> None:
        """One leadership ends and the next begins, in turn as after a handover and as after one that was given up.

        With `has_tail` those of the second kind wait for a record that is in no object: it must be under way, and no
        acknowledgement may wait for objects.
        """
        partition = self.partition(topic, index)
        takes_tail = self.moves % 2 == 1
        if takes_tail and has_tail:
            until(lambda: partition.high_watermark() > partition.log.flushed_end, "record that only the log has")
        self.move_all([partition], takes_tail=takes_tail)

    def move_all(self, partitions: Iterable[Partition], *, takes_tail: bool) -> None:
        """These leaderships end together and the next ones begin together: after a flush, or with the log's tail."""
        logs = self.broker.logs
        places = [(partition.topic_id, partition.index) for partition in partitions]
        logs.resign(places)
        if not takes_tail:
            assert self.broker.flusher.flush(timeout=DEADLINE_SECONDS)
            for place in places:
                logs.drop(*place)
        self.lead(places, takes_tail=takes_tail)
        self.moves += 1

    def lead(self, places: Iterable[tuple[bytes, int]], *, takes_tail: bool) -> None:
        """Leads partitions that were resigned."""
        tail_epoch = EVERY_EPOCH if takes_tail else None
        wanted = [Leadership(*place, next(self.epochs), tail_epoch) for place in places]
        assert self.broker.logs.lead(wanted) == []
