"""Numbered log: hostile bytes never get through, and no history of faults breaks its promises."""

from __future__ import annotations

import random
import time
from os import environ
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kbroker._fast.base.crc32c import crc32c
from kbroker.clock import ManualClock
from kbroker.errors import CorruptionError
from kbroker.limits import NUMBERED_LOG_JSON_BYTES_MAX
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger.numbered_log import EarlierAppendFound, Fenced, NumberedLog
from kbroker.storage.ledger.numbered_log_format import HEADER_BYTES, FrameKind, decode_frame, encode_frame
from kbroker.storage.stores.conditional_write import OutcomeUnknown
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import ObjectMeta, PreconditionFailed, StoreUnavailable

FUZZ_SECONDS = float(environ.get("KBROKER_FUZZ_SECONDS", "2"))
NONCE = bytes(range(16))

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=20,
)


@given(
    kind=st.sampled_from(FrameKind), number=st.integers(0, 2**64 - 1), content=st.dictionaries(st.text(), json_values)
)
def test_frames_round_trip(kind: FrameKind, number: int, content: dict[str, Any]) -> None:
    data = encode_frame(kind, number, 7, NONCE, content)
    frame = decode_frame(data, "key")
    assert (frame.kind, frame.number, frame.epoch, frame.nonce, frame.content) == (kind, number, 7, NONCE, content)
    assert encode_frame(kind, number, 7, NONCE, dict(reversed(content.items()))) == data


@given(number=st.integers(0, 2**64 - 1), kind=st.text("abc", max_size=255), payload=st.binary())
def test_records_of_bytes_round_trip(number: int, kind: str, payload: bytes) -> None:
    content = {"kind": kind, "payload": payload}
    frame = decode_frame(encode_frame(FrameKind.RECORD, number, 7, NONCE, content), "key")
    assert (frame.kind, frame.number, frame.epoch, frame.nonce, frame.content) == (1, number, 7, NONCE, content)


@pytest.mark.parametrize("payload", [{"objects": list(range(50))}, bytes(range(50))])
def test_every_changed_byte_and_every_cut_is_refused(payload: Any) -> None:
    data = encode_frame(FrameKind.RECORD, 3, 2, NONCE, {"kind": "flush", "payload": payload})
    for at in range(len(data)):
        for changed in (data[:at], data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]):
            with pytest.raises(CorruptionError, match="the/key"):
                decode_frame(changed, "the/key")
    with pytest.raises(CorruptionError):
        decode_frame(data + b"\0", "the/key")


def frame_with(payload: bytes, plain_bytes: int, version: int = 1, kind: FrameKind = FrameKind.RECORD) -> bytes:
    """A frame with good checksums around a bad payload."""
    data = bytearray(encode_frame(kind, 3, 2, NONCE, {})[:HEADER_BYTES])
    data[4:6] = version.to_bytes(2, "big")
    data[40:44], data[44:48] = len(payload).to_bytes(4, "big"), plain_bytes.to_bytes(4, "big")
    data[48:52] = crc32c(payload).to_bytes(4, "big")
    data[52:56] = crc32c(bytes(data[:52])).to_bytes(4, "big")
    return bytes(data) + payload


@pytest.mark.parametrize(
    "plain", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 200_000, b'{"a":NaN', b"9" * 10_000, b'{"a":' * 100_000]
)
def test_payloads_that_are_not_json_objects_are_refused(plain: bytes) -> None:
    with pytest.raises(CorruptionError, match="the/key"):
        decode_frame(frame_with(zstandard.compress(plain), len(plain)), "the/key")


@pytest.mark.parametrize("plain", [b"", b"\x01", b"\xffabc", b"\x01\x80"])
def test_payloads_that_end_within_the_kind_are_refused(plain: bytes) -> None:
    with pytest.raises(CorruptionError, match="the/key"):
        decode_frame(frame_with(zstandard.compress(plain), len(plain), version=2), "the/key")


@pytest.mark.parametrize("kind", [FrameKind.CHECKPOINT, FrameKind.SEAL])
def test_only_records_are_of_bytes(kind: FrameKind) -> None:
    plain = b"\x01a"
    with pytest.raises(CorruptionError, match="bad header"):
        decode_frame(frame_with(zstandard.compress(plain), len(plain), 2, kind), "the/key")


def test_a_decompression_bomb_is_refused_before_it_is_decompressed() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(4 << 20))
    for claimed in (10, NUMBERED_LOG_JSON_BYTES_MAX + 1, 0):
        with pytest.raises(CorruptionError):
            decode_frame(frame_with(bomb, claimed), "the/key")
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"{}")
    with pytest.raises(CorruptionError):
        decode_frame(frame_with(unsized, 2), "the/key")


def test_random_bytes_never_raise_anything_else() -> None:
    draw = random.Random(5)
    good = encode_frame(FrameKind.SEAL, 3, 2, NONCE, {"by_epoch": 9})
    end = time.monotonic() + FUZZ_SECONDS
    while time.monotonic() < end:
        data = bytearray(good)
        for _ in range(draw.randrange(1, 6)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        if draw.random() < 0.5:  # get past the header's CRC
            data[52:56] = crc32c(bytes(data[:52])).to_bytes(4, "big")
        try:
            decode_frame(bytes(data), "key")
        except CorruptionError:
            pass


class LossyStore(MemoryStore):
    """Each request does what the next scripted outcome says; requests that got lost may arrive later."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[str] = []
        self.late: list[tuple[str, bytes]] = []

    def _next(self) -> str:
        return self.outcomes.pop(0) if self.outcomes else "good"

    def put(self, key: str, body: Any, **options: Any) -> ObjectMeta:
        outcome = self._next()
        if outcome == "lost":
            raise StoreUnavailable(f"{key}: lost")
        if outcome == "late" and options.get("if_none_match"):
            self.late.append((key, body))
            raise StoreUnavailable(f"{key}: late")
        meta = super().put(key, body, **options)
        if outcome == "refused" and options.get("if_none_match"):
            raise PreconditionFailed(f"{key}: done, but its own repetition was refused")
        if outcome not in ("good", "refused"):
            raise StoreUnavailable(f"{key}: done, but reported as failed")
        return meta

    def get(self, key: str, *arguments: Any, **options: Any) -> bytes:
        if self._next() not in ("good", "refused"):
            raise StoreUnavailable(f"{key}: unreadable")
        return super().get(key, *arguments, **options)

    def arrive(self, at: int) -> None:
        key, body = self.late.pop(at % len(self.late))
        try:
            super().put(key, body, if_none_match=True)
        except PreconditionFailed:
            pass


class Writer:
    """One broker: its log, and its appends with their answers."""

    def __init__(self, store: LossyStore, epoch: int) -> None:
        clock = ManualClock()

        def wait(seconds: float) -> bool:
            clock.advance(seconds)
            return False

        retries = RetryPolicy(0.3, 0.2, 0.2, clock, wait, lambda: 0.9)
        self.log = NumberedLog(store, "d", epoch, epoch.to_bytes(16, "big"), retries=retries)
        self.seen: list[int] = []  # what this broker believes to be in the log, in order
        self.in_doubt: int | None = None
        self.fenced = False
        self.owner = False
        self.report = self.log.load(
            lambda number, payload: self.seen.__setitem__(slice(None), payload), self._on_record
        )

    def _on_record(self, number: int, kind: str, payload: Any) -> None:
        self.seen.append(payload)


OUTCOMES = st.lists(st.sampled_from(["good", "lost", "late", "done", "refused"]), max_size=6)


class LogHistory(RuleBasedStateMachine):
    """Brokers start, append through faults, and supersede each other in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.store = LossyStore()
        self.writers: list[Writer] = []
        self.acknowledged: dict[int, int] = {}  # number -> value
        self.value = 0

    def _guarded(self, writer: Writer, call: Any) -> Any:
        try:
            return call()
        except Fenced:
            writer.fenced = True
        except EarlierAppendFound:
            found = writer.log.take_found()
            assert found is not None
            writer.seen.append(found.payload)
            self.acknowledged[found.number] = found.payload
            writer.in_doubt = None
        except OutcomeUnknown:
            pass
        except StoreUnavailable:
            pass
        return None

    @precondition(lambda self: len(self.writers) < 5)
    @rule()
    def start(self) -> None:
        self.store.outcomes = []
        self.writers.append(Writer(self.store, len(self.writers) + 1))

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, 9), outcomes=OUTCOMES)
    def seal(self, which: int, outcomes: list[str]) -> None:
        writer = self.writers[which % len(self.writers)]
        if not writer.fenced:
            self.store.outcomes = outcomes
            if self._guarded(writer, writer.log.seal_previous) is not None:
                writer.owner = True

    @precondition(lambda self: any(writer.owner for writer in self.writers))
    @rule(which=st.integers(0, 9), outcomes=OUTCOMES, again=st.booleans())
    def append(self, which: int, outcomes: list[str], again: bool) -> None:
        owners = [writer for writer in self.writers if writer.owner]
        writer = owners[which % len(owners)]
        if writer.in_doubt is not None and again:
            value = writer.in_doubt
        else:
            self.value += 1
            value = self.value
        self.store.outcomes = outcomes
        was_fenced = writer.fenced
        writer.in_doubt = value
        number = self._guarded(writer, lambda: writer.log.append("v", value))
        if number is not None:
            assert not was_fenced, "a fenced writer succeeded"
            writer.seen.append(value)
            writer.in_doubt = None
            self.acknowledged[number] = value

    @precondition(lambda self: any(writer.owner for writer in self.writers))
    @rule(which=st.integers(0, 9), outcomes=OUTCOMES)
    def checkpoint(self, which: int, outcomes: list[str]) -> None:
        owners = [writer for writer in self.writers if writer.owner]
        writer = owners[which % len(owners)]
        if not writer.fenced:
            self.store.outcomes = outcomes
            self._guarded(writer, lambda: writer.log.checkpoint(list(writer.seen)))

    @precondition(lambda self: self.store.late)
    @rule(at=st.integers(0, 99))
    def late_request_arrives(self, at: int) -> None:
        self.store.arrive(at)

    @invariant()
    def what_was_acknowledged_is_there_once_and_in_order(self) -> None:
        self.store.outcomes = []
        reader = Writer(self.store, 0)
        assert len(set(reader.seen)) == len(reader.seen), f"appears twice: {reader.seen}"
        assert not reader.report.ignored
        told = [value for value in reader.seen if value in set(self.acknowledged.values())]
        assert told == [value for _, value in sorted(self.acknowledged.items())]
        for writer in self.writers:
            if writer.owner:  # a broker's belief is always a prefix of the truth
                assert reader.seen[: len(writer.seen)] == writer.seen


LogHistory.TestCase.settings = settings(
    max_examples=max(40, int(20 * FUZZ_SECONDS)),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLogHistory = LogHistory.TestCase
