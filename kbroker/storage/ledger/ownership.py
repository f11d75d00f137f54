"""Which broker owns a cluster: claims in the bucket, one object per start of a broker, made by conditional writes.

The highest claim owns. No timer is involved: a claim holds until a higher one exists, so an outage of the store changes
no ownership. Claims are never deleted: a claimer that was paused must still find its epoch taken. (What makes a
superseded broker's writes fail is the seal in each numbered log; the claim decides which broker may seal.)
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, islice

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError, StartError
from kbroker.limits import CLAIM_BYTES_MAX
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger.claim_format import ClaimRecord, decode_claim, encode_claim
from kbroker.storage.stores.conditional_write import create_once, read_back
from kbroker.storage.stores.object_store import (
    NotFound,
    ObjectStore,
    PreconditionFailed,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from kbroker.storage.stores.store_wrappers import RetryingStore

CLAIMS_DIRECTORY = "_claims/"
CLUSTER_PREFIX = "kbroker-"
LIST_PAGE_KEYS = 1000
_CLAIM_NAME = re.compile(r"(\d{10})\.json", re.ASCII)
_AFTER_SLASH = chr(ord("/") + 1)


class Superseded(Exception):
    """Another broker has claimed the cluster since; the message names it. Stop, and keep the WAL."""


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """A cluster in the bucket. ``newest_epoch``: of its claims when they were listed; 0: not known."""

    cluster_id: str
    newest_epoch: int = 0


def find_clusters(store: ObjectStore, prefix: str = "") -> list[FoundCluster]:
    """The clusters with a claim under ``prefix`` ("" or ending in "/"), in order.

    One request for a small bucket; otherwise up to three per cluster.
    """
    start = prefix + CLUSTER_PREFIX
    clusters: list[FoundCluster] = []
    after: str | None = None
    while True:
        # One page of a listing. The next listing starts after all keys of the last cluster in it.
        page = [meta.key for meta in islice(store.list(start, after), LIST_PAGE_KEYS)]
        cut = len(page) == LIST_PAGE_KEYS
        for cluster, keys in groupby(page, lambda key: _cluster_of(key, start)):
            if cluster is None:
                continue
            directory = f"{start}{cluster}/{CLAIMS_DIRECTORY}"
            claims = [key for key in keys if key.startswith(directory)]
            if cut and cluster == _cluster_of(page[-1], start) and page[-1] < directory.rstrip("/") + _AFTER_SLASH:
                claims = [meta.key for meta in store.list(directory)]
            if claims:
                # An illegal name is refused when the cluster is claimed.
                epochs = [_CLAIM_NAME.fullmatch(key, len(directory)) for key in claims]
                newest = epochs[-1] if all(epochs) else None
                clusters.append(FoundCluster(cluster, int(newest[1]) if newest else 0))
        if not cut:
            return clusters
        last = _cluster_of(page[-1], start)
        after = page[-1] if last is None else start + last + _AFTER_SLASH


def discover_clusters(store: ObjectStore, prefix: str = "") -> list[str]:
    """Ids of the clusters with a claim, as `find_clusters`."""
    return [found.cluster_id for found in find_clusters(store, prefix)]


def _cluster_of(key: str, start: str) -> str | None:
    cluster, slash, _ = key[len(start) :].partition("/")
    return cluster if slash else None


def check_only_claims(store: ObjectStore, root: str) -> None:
    """For a cluster whose manifest log holds nothing, as before its first start: CorruptionError, naming a key, when
    the bucket has more of it than claims. Then the log was lost, and starting would begin at offset 0 beside the data.
    """
    claims = root + CLAIMS_DIRECTORY
    for after in (None, claims.rstrip("/") + _AFTER_SLASH):
        meta = next(store.list(root, after), None)
        if meta is not None and not meta.key.startswith(claims):
            raise CorruptionError(f"{root}: no manifest, but {meta.key} exists: the manifest was lost or deleted")


def newest_claim(store: ObjectStore, root: str) -> ClaimRecord | None:
    """The claim that owns the cluster now; None if there is none. CorruptionError names a damaged one."""
    epoch = _highest_epoch(store, root)
    return claim_at(store, root, epoch) if epoch else None


def claim_at(store: ObjectStore, root: str, epoch: int) -> ClaimRecord:
    """The claim of an epoch that is known to exist. CorruptionError names a damaged or missing one."""
    key = _claim_key(root, epoch)
    data = read_back(store, key, CLAIM_BYTES_MAX)
    if data is None:
        raise CorruptionError(f"{key}: the claim was listed but is not there; claims are never deleted")
    return decode_claim(data, key, epoch)


def claim(
    store: ObjectStore,
    root: str,
    data_dir_id: str,
    take_over: bool,
    now_ms: int,
    *,
    last_epoch: int = 0,
    lowest_epoch: int = 1,
    newest_epoch: int = 0,
    cluster: str = "",
    adopt: bool = False,
    host: str | None = None,
    pid: int | None = None,
    nonce: str | None = None,
    retries: RetryPolicy | None = None,
) -> Claim:
    """Claims the cluster at ``root`` ("[prefix/]kbroker-<id>/"), at the epoch after the highest one.

    Allowed where there is no claim, the newest was released, it is of the same data directory, or with ``take_over``.
    ``cluster``: the claim is of the controller of many brokers, of this etcd. Such a claim may follow one of the same
    etcd; one of another etcd with ``adopt``; no single broker and no job may follow it before it is released.
    ``last_epoch``: the epoch this data directory last ran with (0: never); a bucket with only lower ones has lost
    something. ``lowest_epoch``: the lowest epoch that the claim may have (imported data has leader epochs of its own).
    ``newest_epoch``: the highest claim as the caller has just listed it, 0 if it has not; a higher one now means that
    the race was lost. Raises StartError (refused, or a damaged claim), StoreError.
    """
    retries = retries or RetryPolicy()
    reads = RetryingStore(store, retries)
    lost_race = False
    while True:
        try:
            is_listed = newest_epoch > 0 and not lost_race
            holder = claim_at(reads, root, newest_epoch) if is_listed else newest_claim(reads, root)
        except CorruptionError as error:
            raise StartError(f"cannot tell which broker owns the cluster: {error}; nothing was changed") from error
        if last_epoch > (holder.epoch if holder else 0):
            raise StartError(
                f"{root}: the newest claim in the bucket is {holder.epoch if holder else 'missing'}, but this data "
                f"directory already ran as epoch {last_epoch}: wrong bucket or prefix, or the bucket lost objects"
            )
        free = holder is None or holder.released or _is_same_owner(holder, data_dir_id, cluster)
        if holder is not None and not free and holder.cluster:
            if not (cluster and adopt):
                raise StartError(_cluster_refusal(root, holder, cluster))
        # A take-over replaces the holder that the operator saw, not a broker that claimed in between.
        elif holder is not None and not free and (lost_race or not take_over):
            raise StartError(_refusal(root, holder, lost_race))
        record = ClaimRecord(
            epoch=max(holder.epoch + 1 if holder else 1, lowest_epoch),
            data_dir_id=data_dir_id,
            host=socket.gethostname() if host is None else host,
            pid=os.getpid() if pid is None else pid,
            started_ms=now_ms,
            nonce=os.urandom(16).hex() if nonce is None else nonce,
            previous_epoch=holder.epoch if holder else 0,
            take_over=not free,
            cluster=cluster,
        )
        key = _claim_key(root, record.epoch)
        if create_once(store, key, encode_claim(record), retries, CLAIM_BYTES_MAX) is None:
            return Claim(store, root, record, holder, retries)
        lost_race = True


@dataclass(slots=True)
class Claim:
    """The claim of this process."""

    store: ObjectStore
    root: str
    record: ClaimRecord
    previous: ClaimRecord | None  # the newest claim before
    retries: RetryPolicy
    heads: bool = True  # False: this store denies a HEAD of a missing key

    @property
    def epoch(self) -> int:
        """The broker epoch; the leader epoch of every partition."""
        return self.record.epoch

    @property
    def warning(self) -> str | None:
        """After a take-over: what may be lost, in one line; None otherwise."""
        if not self.record.take_over or self.previous is None:
            return None
        return f"took over from {_describe(self.previous)}: {_loss(self.previous)}"

    def intruder(self, since_epoch: int) -> ClaimRecord | None:
        """The newest claim of another data directory between ``since_epoch`` and ours; one request per claim."""
        record, reads = self.previous, RetryingStore(self.store, self.retries)
        while record is not None and record.epoch > since_epoch:
            if record.data_dir_id != self.record.data_dir_id:
                return record
            previous = record.previous_epoch
            record = claim_at(reads, self.root, previous) if previous > since_epoch else None
        return None

    def check(self) -> None:
        """Raises Superseded if a higher claim exists. One request; StoreError if that is unknown."""
        own = _claim_key(self.root, self.epoch)
        found = [meta.key for meta in self.store.list(self.root + CLAIMS_DIRECTORY, _before(own))]
        if own not in found:
            raise StoreError(f"{own}: our claim is gone from the bucket; claims are never deleted")
        if found[-1] != own:
            raise Superseded(f"epoch {self.epoch} of {self.root} was superseded: {found[-1]} exists")

    def look(self) -> None:
        """As `check`, by one HEAD, cheaper than a listing: raises Superseded if the next epoch is claimed.

        No claim skips an epoch above one that was not released. StoreError if it is unknown.
        """
        if not self.heads:
            self.check()
            return
        following = _claim_key(self.root, self.epoch + 1)
        try:
            self.store.head(following)
        except NotFound:
            return
        except StoreDenied:  # S3 answers so for a missing key where a policy allows listing one prefix only
            self.check()
            self.heads = False
            return
        raise Superseded(f"epoch {self.epoch} of {self.root} was superseded: {following} exists")

    def release(self, now_ms: int, retries: RetryPolicy | None = None) -> None:
        """Marks that this broker stopped cleanly, with everything in the bucket. Raises Superseded if it was replaced.

        Raises StoreError on failure; then the next broker needs the same data directory or a take-over.
        ``retries``: a policy other than the claim's own, which a stop may have cancelled.
        """
        key = _claim_key(self.root, self.epoch)
        released = replace(self.record, released=True, released_ms=now_ms)
        data = encode_claim(released)
        failure: StoreError | None = None
        for _ in (retries or self.retries).attempts():
            try:
                self.check()
                etag = self.store.head(key).etag
                present = read_back(self.store, key, CLAIM_BYTES_MAX)
                if present != data:
                    # Only another process with our identity changes our claim: do not overwrite it.
                    if present is None or decode_claim(present, key, self.epoch) != self.record:
                        raise Superseded(f"{key}: our claim was changed by another process")
                    self.store.put(key, data, if_match=etag, crc32c=crc32c(data))
                self.record = released
                return
            except (StoreUnavailable, PreconditionFailed) as error:
                failure = error  # it may have succeeded; the next attempt reads it
            except (NotFound, CorruptionError) as error:
                raise StoreError(f"{key}: our claim is gone or damaged: {error}") from error
        raise StoreUnavailable(f"{key}: cannot tell whether the claim was released: {failure}") from failure


def _highest_epoch(store: ObjectStore, root: str) -> int:
    directory = root + CLAIMS_DIRECTORY
    names = [meta.key[len(directory) :] for meta in store.list(directory)]
    for name in names:
        if not _CLAIM_NAME.fullmatch(name):
            raise CorruptionError(f"{directory}{name}: not the name of a claim")
    return int(names[-1][:10]) if names else 0


def _claim_key(root: str, epoch: int) -> str:
    return f"{root}{CLAIMS_DIRECTORY}{epoch:010d}.json"


def _before(key: str) -> str:
    """A key between ``key`` and the claim before it."""
    return key.removesuffix(".json")


def _is_same_owner(holder: ClaimRecord, data_dir_id: str, cluster: str) -> bool:
    """A cluster's claim may follow another of the same etcd; that of a single broker another of its data directory."""
    return holder.cluster == cluster and (cluster != "" or holder.data_dir_id == data_dir_id)


def _cluster_refusal(root: str, holder: ClaimRecord, cluster: str) -> str:
    owner = f"{root} is owned by the brokers of etcd {holder.cluster}; their controller is {_describe(holder)}"
    if cluster:
        return f"{owner}. This broker uses etcd {cluster}. If that etcd is lost for good, start with --adopt-etcd"
    return f"{owner}. Stop all of them first, or start with --metadata {holder.cluster}"


def _refusal(root: str, holder: ClaimRecord, lost_race: bool) -> str:
    if lost_race:
        return f"{root}: another broker claimed the cluster at the same moment: {_describe(holder)}"
    return (
        f"{root} is owned by {_describe(holder)}, which has not released it. If that broker is stopped for good, start "
        f"with --take-over; {_loss(holder)}"
    )


def _describe(holder: ClaimRecord) -> str:
    try:
        started = datetime.fromtimestamp(holder.started_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        started = f"{holder.started_ms} ms"
    return f"broker epoch {holder.epoch} (host {holder.host}, pid {holder.pid}, started {started})"


def _loss(holder: ClaimRecord) -> str:
    return (
        "what it acknowledged and had not yet flushed is only in the write-ahead log of its data directory "
        f"{holder.data_dir_id}, and is lost to the cluster"
    )
