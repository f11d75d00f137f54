"""Checks of ``kbroker doctor``: the object store. Each operation that a broker needs is tried once, on keys of its own.

Nothing is retried, and all that was written is deleted again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from kbroker._fast.base.crc32c import crc32c
from kbroker.app.config import BrokerConfig
from kbroker.cli.doctor.cluster import READ_SECONDS, check_cluster
from kbroker.cli.doctor.finding import Finding, Status, failed, ok, warning
from kbroker.cli.doctor.machine import existing_parent
from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.limits import KIB, MIB
from kbroker.storage.stores.object_store import (
    PART_BYTES_MIN,
    NotFound,
    ObjectMeta,
    ObjectStore,
    PreconditionFailed,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from kbroker.storage.stores.store_probe import PROBE_DIRECTORY
from kbroker.storage.stores.store_url import FILE_SCHEME, S3_SCHEME, folder_of, open_store

CONNECT_SECONDS = 5.0
ROUNDS = 5  # of the requests that are timed
SLOW_PUT_SECONDS = 1.0
SKEW_SECONDS_MAX = 30
RESOLUTION_MS = 1_000  # of the times that stores tell
CHANGE_STORE = "use a store that does (Amazon S3, MinIO, versitygw, or a local folder)"

WRONG_CREDENTIALS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "XAdminUserNotFound", "credentials")

T = TypeVar("T")


@dataclass(slots=True)
class _Trial:
    """One object and one upload, and what trying them found."""

    store: ObjectStore
    clock: Clock
    key: str
    findings: list[Finding] = field(default_factory=list)
    is_over: bool = False  # nothing more can be tried

    def attempt(self, check: str, permission: str, call: Callable[[], T]) -> T | None:
        """The result of a request, or None after a finding that says why there is none."""
        if self.is_over:
            return None
        try:
            return call()
        except StoreDenied as error:
            self.findings.append(failed(check, str(error), _advice_of_denial(error, permission)))
        except StoreUnavailable as error:
            self.is_over = True
            self.findings.append(failed(check, str(error), _advice_of_outage(error)))
        except (StoreError, CorruptionError) as error:
            self.is_over = str(error).startswith("bucket ")  # there is none
            advice = "create it, or name another" if self.is_over else "the store lacks what a broker needs"
            self.findings.append(failed(check, str(error), advice))
        return None

    def add(self, finding: Finding) -> None:
        self.findings.append(finding)

    def take(self) -> list[Finding]:
        """What was found since the last call."""
        found, self.findings = self.findings, []
        return found


def check_store(config: BrokerConfig, clock: Clock) -> Iterator[Finding]:
    """Access, each operation, conditional writes, latency, clock, and which cluster is there."""
    if config.object_store.startswith(S3_SCHEME):
        credentials = _credentials()
        yield credentials
        if credentials.status is Status.FAILED:
            return
    try:
        with _place_of_trial(config) as url:
            store = open_store(
                url,
                config.s3_endpoint,
                config.s3_region,
                connect_timeout_s=CONNECT_SECONDS,
                read_timeout_s=READ_SECONDS,
            )
            with contextlib.closing(store):
                trial = _Trial(store, clock, f"kbroker{PROBE_DIRECTORY}{os.urandom(16).hex()}")
                for step in (_try_object, _try_upload):
                    step(trial)
                    yield from trial.take()
        if not trial.is_over:
            yield check_cluster(config)
    except (OSError, ValueError, StoreError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        yield failed("store", f"cannot use {config.object_store}: {reason}", "change --object-store or --s3-endpoint")


@contextlib.contextmanager
def _place_of_trial(config: BrokerConfig) -> Iterator[str]:
    """The URL to try. Of a folder: one of its own in it, or where it would be created; it is removed afterwards."""
    if not config.object_store.startswith(FILE_SCHEME):
        yield config.object_store
        return
    folder = tempfile.mkdtemp(prefix=".kbroker-doctor-", dir=existing_parent(folder_of(config.object_store)))
    try:
        yield f"{FILE_SCHEME}{folder}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _credentials() -> Finding:
    from kbroker.storage.stores.s3_client import credentials_source  # loads boto3

    try:
        source = credentials_source()
    except StoreError as error:
        return failed("store-credentials", str(error), "see boto3's chain of credentials")
    if source is None:
        advice = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
        return failed("store-credentials", "there are none", advice)
    return ok("store-credentials", f"from {source}")


def _try_object(trial: _Trial) -> None:
    store, key = trial.store, trial.key
    body = os.urandom(4 * KIB)
    sent_ms = trial.clock.now_ms()
    made = trial.attempt("store-put", "s3:PutObject", lambda: store.put(key, body, crc32c=crc32c(body)))
    if made is None:
        trial.attempt("store-list", "s3:ListBucket", lambda: next(store.list(key), None))
        with contextlib.suppress(StoreError):  # a write that timed out may have happened
            store.delete([key])
        return
    try:
        trial.add(ok("store-put", "an object was written"))
        got = trial.attempt("store-get", "s3:GetObject", lambda: store.get(key, 0, len(body)))
        if got is not None:
            trial.add(ok("store-get", "it was read") if got == body else
                      failed("store-get", "other bytes were read than written", CHANGE_STORE))  # fmt: skip
        head = trial.attempt("store-head", "s3:GetObject", lambda: store.head(key))
        if head is not None:
            trial.add(_clock_finding(head, sent_ms, trial.clock.now_ms()))
        listed = trial.attempt("store-list", "s3:ListBucket", lambda: [meta.key for meta in store.list(key)])
        if listed is not None:
            trial.add(ok("store-list", "it was listed") if listed == [key] else
                      failed("store-list", "it was not listed at once", CHANGE_STORE))  # fmt: skip
        _try_conditions(trial, made, body)
        _time_requests(trial, body)
    finally:
        deleted = trial.attempt("store-delete", "s3:DeleteObject", lambda: _delete(store, key))
        if deleted:
            trial.add(ok("store-delete", "it was deleted"))


def _delete(store: ObjectStore, key: str) -> bool:
    store.delete([key])
    try:
        store.head(key)
    except NotFound:
        return True
    except StoreDenied:  # where listing is denied, S3 answers so for a missing key
        return True
    raise StoreError(f"{key} is still there after it was deleted")


def _try_conditions(trial: _Trial, made: ObjectMeta, body: bytes) -> None:
    def refused(if_match: str | None) -> bool:
        try:
            trial.store.put(trial.key, body, if_none_match=if_match is None, if_match=if_match, crc32c=crc32c(body))
        except PreconditionFailed:
            return True
        return False

    def replaced() -> bool:
        try:
            trial.store.put(trial.key, body, if_match=made.etag, crc32c=crc32c(body))
        except PreconditionFailed:
            return False
        return True

    wrong_etag = '"' + "0" * 32 + '"'
    for check, text, call in (
        ("store-if-none-match", "an existing object is not replaced", lambda: refused(None)),
        ("store-if-match", "only the named version is replaced", lambda: replaced() and refused(wrong_etag)),
    ):
        holds = trial.attempt(check, "s3:PutObject", call)
        if holds is not None:
            ignored = "the condition is ignored: two brokers could overwrite each other"
            trial.add(ok(check, text) if holds else failed(check, ignored, CHANGE_STORE))


def _time_requests(trial: _Trial, body: bytes) -> None:
    def median_ms(call: Callable[[], object]) -> float:
        seconds = []
        for _ in range(ROUNDS):
            started = trial.clock.monotonic()
            call()
            seconds.append(trial.clock.monotonic() - started)
        return sorted(seconds)[ROUNDS // 2] * 1000

    check = "store-latency"
    put_ms = trial.attempt(
        check, "s3:PutObject", lambda: median_ms(lambda: trial.store.put(trial.key, body, crc32c=crc32c(body)))
    )
    get_ms = trial.attempt(check, "s3:GetObject", lambda: median_ms(lambda: trial.store.get(trial.key, 0, len(body))))
    if put_ms is None or get_ms is None:
        return
    text = f"4 KiB: put {put_ms:.1f} ms, get {get_ms:.1f} ms (medians of {ROUNDS})"
    if put_ms > SLOW_PUT_SECONDS * 1000:
        trial.add(warning(check, text, "use a store that is nearer: commits and metadata changes wait for it"))
    else:
        trial.add(ok(check, text))


def _try_upload(trial: _Trial) -> None:
    """A multipart upload of two parts, and one that is aborted."""
    check, store, key = "store-multipart", trial.store, f"{trial.key}-parts"
    upload_id = trial.attempt(check, "s3:PutObject", lambda: store.create_multipart(key))
    if upload_id is None:
        return
    parts = (bytes(PART_BYTES_MIN), b"end")

    def complete() -> bool:
        uploaded = [
            store.upload_part(key, upload_id, number, part, crc32c=crc32c(part)) for number, part in enumerate(parts, 1)
        ]
        store.complete_multipart(key, upload_id, uploaded)
        if store.head(key).size != sum(map(len, parts)):
            raise StoreError(f"{key} does not have the size of its parts")
        store.delete([key])
        return True

    def abort() -> bool:
        store.abort_multipart(key, store.create_multipart(key))
        return True

    if trial.attempt(check, "s3:PutObject", complete):
        trial.add(ok(check, f"parts of {PART_BYTES_MIN // MIB} MiB were joined"))
        if trial.attempt("store-abort", "s3:AbortMultipartUpload", abort):
            trial.add(ok("store-abort", "an upload was aborted"))
    else:
        with contextlib.suppress(StoreError):
            store.abort_multipart(key, upload_id)


def _clock_finding(head: ObjectMeta, sent_ms: int, now_ms: int) -> Finding:
    """This machine's clock beside the store's, which gave the object its time in whole seconds."""
    ahead_ms = sent_ms - RESOLUTION_MS - head.modified_ms
    behind_ms = head.modified_ms - now_ms
    skew_ms = max(ahead_ms, behind_ms)
    if skew_ms < RESOLUTION_MS:
        return ok("clock", "it agrees with the store's to the second")
    text = f"it is {skew_ms // 1000} s {'ahead of' if ahead_ms > 0 else 'behind'} the store's"
    if skew_ms <= SKEW_SECONDS_MAX * 1000:
        return ok("clock", text)
    return warning("clock", f"{text}; S3 refuses requests from 15 minutes on", "synchronize it, as chrony does")


def _advice_of_denial(error: StoreDenied, permission: str) -> str:
    text = str(error)
    if "RequestTimeTooSkewed" in text:
        return "set this machine's clock: the store refuses requests from another time"
    if any(sign in text for sign in WRONG_CREDENTIALS):
        return "check the credentials"
    if "Token" in text:
        return "renew the credentials: they have expired"
    return f"allow {permission} on the bucket and the prefix" if "s3://" in text else "change the folder's permissions"


def _advice_of_outage(error: StoreUnavailable) -> str:
    if isinstance(error, StoreFull):
        return "free space there"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "name a file with the authority's certificate in AWS_CA_BUNDLE"
    return "check endpoint, network and disk"
