"""Every key of a cluster in its bucket: built and parsed here and nowhere else.

    [prefix/]kbroker-<cluster id>/                               the root of one cluster
        <topic>-<topic id, 32 hex>/<partition>/<base>.obj         KLIX object as flushed
        <topic>-<topic id, 32 hex>/<partition>/<base>-<gen>.obj   the same range written again
        <topic>-<topic id, 32 hex>/<partition>/<base>-<gen>-<rewrite, 16 hex>.obj   merged, compacted, imported
        <topic>-<topic id, 32 hex>/<partition>/<base>[-<gen>]-b<broker number, 10>-<counter, 20>.obj   of many brokers
        <topic>/<partition>/segment-<base>.kfs                    KafScale segment, and .index beside it
        _packs/<broker epoch, 10>-<number, 20>.pack               many KLIX images of one flush
        _packs/<broker epoch, 10>-<number, 20>-<gen>.pack         merged images of many partitions
        _packs/b<broker number, 10>-<counter, 20>[-<gen>].pack    either, of many brokers
        _manifest/ _metadata/ _claims/                            numbered logs and ownership
        _manifest_parts/<epoch, 10>-<SHA-256, 32 hex>.part        parts of the manifest's checkpoints

Numbers are decimal with leading zeros where a width is given, so that keys list in order; partition and generation
have no leading zeros. Topic names are Kafka's legal names, unchanged. The topic id after the name keeps them apart from
the underscore folders; KafScale segments have no topic id, so their topics may not be named like such a folder.
docs/formats/keys.md is the reference.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kbroker.storage.formats.kfs_keys import INDEX_SUFFIX, SEGMENT_SUFFIX, KfsKey, parse_kfs_key

MANIFEST_DIR = "_manifest"
MANIFEST_PARTS_DIR = "_manifest_parts"
METADATA_DIR = "_metadata"
CLAIMS_DIR = "_claims"
PACKS_DIR = "_packs"
PROBE_DIR = "kbroker_probe"  # beside the clusters

OWN_FOLDERS = frozenset({MANIFEST_DIR, MANIFEST_PARTS_DIR, METADATA_DIR, CLAIMS_DIR, PACKS_DIR})
# no topic with segments has such a name

LEDGER_DIRS = frozenset({MANIFEST_DIR, METADATA_DIR, CLAIMS_DIR, PROBE_DIR})  # small objects, always needed

_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_GENERATION = r"(?P<generation>[1-9][0-9]{0,9})"
_AUTHOR = r"b(?P<author>[0-9]{10})-(?P<counter>[0-9]{20})"
_KLIX = re.compile(
    r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<id>[0-9a-f]{32})/(?P<partition>0|[1-9][0-9]{0,9})"
    rf"/(?P<base>[0-9]{{20}})(?:-{_GENERATION}(?:-(?P<rewrite>[0-9a-f]{{16}}))?)?(?:-{_AUTHOR})?\.obj"
)
_PACK = re.compile(rf"_packs/(?:{_AUTHOR}|(?P<epoch>[0-9]{{10}})-(?P<number>[0-9]{{20}}))(?:-{_GENERATION})?\.pack")
_ROOT = re.compile(r"(?:(?P<prefix>.*)/)?kbroker-(?P<id>[A-Za-z0-9_-]{1,32})/(?P<rest>.*)", re.DOTALL)


def is_ledger_key(key: str) -> bool:
    """Whether a full key is of the ledger or of the store probe."""
    return not LEDGER_DIRS.isdisjoint(key.split("/"))


class Author(NamedTuple):
    """Which broker number made an object, and that broker's counter. No two objects have the same."""

    number: int
    counter: int

    def __str__(self) -> str:
        return f"b{self.number:010d}-{self.counter:020d}"


class KlixKey(NamedTuple):
    """The parts of a KLIX object's key; generation 0 is the object as first flushed.

    `rewrite` is random, 16 hex digits: the key of an abandoned rewrite is never written again, so a late deletion (by a
    superseded owner, or one that was reported as failed) never hits live data. With an `author` there is none.
    """

    topic: str
    topic_id: bytes
    partition: int
    base_offset: int
    generation: int
    rewrite: str = ""
    author: Author | None = None


class PackKey(NamedTuple):
    """The parts of a pack's key; generation 0 is a pack of a flush. Broker epoch and number are -1 with an `author`."""

    broker_epoch: int
    number: int
    generation: int = 0
    author: Author | None = None


def klix_key(
    topic: str,
    topic_id: bytes,
    partition: int,
    base_offset: int,
    generation: int = 0,
    rewrite: str = "",
    author: Author | None = None,
) -> str:
    """The key, below the root, of a KLIX object. ValueError for an illegal topic name or number."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ValueError(f"not a legal topic name for an object key: {topic!r}")
    if len(topic_id) != 16 or not 0 <= partition < 1 << 31 or not 0 <= base_offset < 1 << 63:
        raise ValueError(f"out of range for an object key: {topic_id!r} {partition} {base_offset}")
    suffix = f"-{generation}" if generation else ""
    if author is not None:
        _check_author(author)
        suffix += f"-{author}"
    elif rewrite:
        suffix += f"-{rewrite}"
    return f"{topic}-{topic_id.hex()}/{partition}/{base_offset:020d}{suffix}.obj"


def pack_key(broker_epoch: int, number: int, generation: int = 0) -> str:
    """The key, below the root, of a pack."""
    if not 0 <= broker_epoch < 10**10 or not 0 <= number < 1 << 63:
        raise ValueError(f"out of range for a pack key: {broker_epoch} {number}")
    suffix = f"-{generation}" if generation else ""
    return f"{PACKS_DIR}/{broker_epoch:010d}-{number:020d}{suffix}.pack"


def authored_pack_key(author: Author, generation: int = 0) -> str:
    """The key, below the root, of a pack of one of many brokers. ValueError for an illegal number."""
    _check_author(author)
    return f"{PACKS_DIR}/{author}{f'-{generation}' if generation else ''}.pack"


def _check_author(author: Author) -> None:
    if not 0 < author.number < 10**10 or not 0 <= author.counter < 1 << 63:
        raise ValueError(f"out of range for an object key: {author!r}")


def segment_key(relative_key: str) -> KfsKey | None:
    """Parses the key, below the root, of a KafScale segment or its index; None for any other."""
    parsed = parse_kfs_key(f"./{relative_key}")  # the root is the namespace
    return parsed if parsed is not None and parsed.namespace == "." and parsed.topic not in OWN_FOLDERS else None


def parse_key(relative_key: str) -> KlixKey | PackKey | KfsKey | None:
    """Parses a key of data below the root; None for any other (manifest, metadata, foreign)."""
    if relative_key.endswith((SEGMENT_SUFFIX, INDEX_SUFFIX)):
        return segment_key(relative_key)
    match = _PACK.fullmatch(relative_key) or _KLIX.fullmatch(relative_key)
    if match is None:
        return None
    generation, author = int(match["generation"] or 0), None
    if match["author"]:
        author = Author(int(match["author"]), int(match["counter"]))
        if not author.number or author.counter >= 1 << 63:
            return None
    if match.re is _PACK:
        return PackKey(int(match["epoch"] or -1), int(match["number"] or -1), generation, author)
    topic, partition, base, rewrite = (
        match["topic"],
        int(match["partition"]),
        int(match["base"]),
        match["rewrite"] or "",
    )
    if topic in (".", "..") or partition >= 1 << 31 or base >= 1 << 63 or (rewrite and author):
        return None
    return KlixKey(topic, bytes.fromhex(match["id"]), partition, base, generation, rewrite, author)


def split_root(key: str) -> tuple[str, str, str] | None:
    """(prefix, cluster id, key below the root) of any key of any cluster; None for keys of other products."""
    match = _ROOT.fullmatch(key)
    return (match["prefix"] or "", match["id"], match["rest"]) if match else None


class ObjectKeys:
    """The keys of one cluster under an optional prefix; `root` ends with a slash and begins every key."""

    __slots__ = ("cluster_id", "prefix", "root")

    def __init__(self, cluster_id: str, prefix: str = "") -> None:
        if not _CLUSTER_ID.fullmatch(cluster_id):
            raise ValueError(f"not a cluster id (1 to 32 letters, digits, - and _): {cluster_id!r}")
        self.cluster_id = cluster_id
        self.prefix = prefix.strip("/")
        self.root = f"{self.prefix}/kbroker-{cluster_id}/" if self.prefix else f"kbroker-{cluster_id}/"

    def full(self, relative_key: str) -> str:
        """The store key of a key below the root."""
        return self.root + relative_key

    def relative(self, key: str) -> str:
        """The key below the root. ValueError when the key is not of this cluster."""
        if not key.startswith(self.root):
            raise ValueError(f"key is not under {self.root}: {key}")
        return key[len(self.root) :]

    def parse(self, key: str) -> KlixKey | PackKey | KfsKey | None:
        """Parses a store key of this cluster's data; None for any other."""
        return parse_key(key[len(self.root) :]) if key.startswith(self.root) else None

    @property
    def manifest_dir(self) -> str:
        """Directory (no trailing slash) of the manifest's numbered log."""
        return self.root + MANIFEST_DIR

    @property
    def metadata_dir(self) -> str:
        """Directory (no trailing slash) of the metadata log."""
        return self.root + METADATA_DIR

    @property
    def claims_dir(self) -> str:
        """Directory (no trailing slash) of the ownership claims."""
        return self.root + CLAIMS_DIR
