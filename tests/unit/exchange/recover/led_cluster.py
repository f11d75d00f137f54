"""A cluster in a memory store whose brokers are registered and lead its partitions, for tests to damage."""

from __future__ import annotations

from kbroker.storage.formats.object_keys import Author, authored_pack_key, klix_key
from kbroker.storage.manifest.leadership import Mode, Move, NewPartition, Registration
from kbroker.storage.manifest.record import ManifestRecord
from tests.unit.exchange.recover.recover_bucket import TOPICS, DamagedCluster
from tests.unit.storage.read.object_bucket import topic_id

MODES = {"plain": Mode.WAL, "small": Mode.OBJECT, "kafscale": Mode.WAL, "compacted": Mode.OBJECT}


def registration(number, directory):
    return Registration(number, directory, 1, f"nonce-{number}", "place", "", "", "", True)


class LedCluster(DamagedCluster):
    """Directory "dir" gets a number and all leaderships with each start; every other object's key has the number."""

    def __init__(self, store=None):
        self.counter = 0
        super().__init__(store, version=3)

    def start(self):
        super().start()
        image = self.image
        if not image.registrations:
            self.manifest.commit(ManifestRecord(registrations=(registration(1, "other"),)))
            rows = [(name, partition) for name, count in TOPICS.items() for partition in range(count)]
            made = tuple(NewPartition(topic_id(name), partition, MODES[name]) for name, partition in rows)
            self.manifest.commit(ManifestRecord(new_partitions=made))
        self.number, self.leader_epoch = image.last_number + 1, image.leader_epoch + 10
        self.manifest.commit(ManifestRecord(registrations=(registration(self.number, "dir"),)))
        tail = ("dir", self.leader_epoch)
        places = [(state.topic_id, state.partition) for state in image.states()]
        moves = tuple(
            Move(*place, self.number, self.leader_epoch, tail, clean=False, unclean=False) for place in places
        )
        self.manifest.commit(ManifestRecord(moves=moves))
        self.sender = {"number": self.number, "leader_epoch": self.leader_epoch}

    def klix_key(self, topic, partition, base, generation):
        author = self._next_author()
        if author is None:
            return super().klix_key(topic, partition, base, generation)
        return klix_key(topic, topic_id(topic), partition, base, generation, author=author)

    def pack_key(self):
        author = self._next_author()
        return super().pack_key() if author is None else authored_pack_key(author)

    def _next_author(self):
        self.counter += 1
        return Author(self.number, self.counter) if self.counter % 2 else None

    def facts(self, image=None):
        """Without the leader epochs under which nothing was appended: recovery begins one more."""
        found = super().facts(image)
        for facts in found.values():
            facts["epochs"] = tuple(pair for pair in facts["epochs"] if pair[1] < facts["end"])
        return found
