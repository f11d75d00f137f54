"""The budget of decompression: turns, what does not wait, and what compressed bytes claim."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kbroker._fast.records.compressed_size import claim_of
from kbroker._fast.records.compression import DecompressionBusy, compress, decompress, shared_pieces
from kbroker._fast.records.decompression_memory import DecompressionMemory, decompression
from kbroker._fast.records.record_batch import CorruptRecordsError, validate
from kbroker._fast.records.records import build_batch, iter_records
from tests.integration.until import until

SECONDS = 30.0
CODECS = (1, 2, 3, 4)
INVALID_RECORD = 87


def start(*steps) -> list[threading.Thread]:
    threads = [threading.Thread(target=step) for step in steps]
    for thread in threads:
        thread.start()
    return threads


def waiting(memory: DecompressionMemory, count: int) -> None:
    """Returns when so many threads wait, or are about to: they have their places in the queue."""
    until(lambda: memory.waits == count, f"{count} that wait")


def test_waiters_are_served_in_order() -> None:
    memory = DecompressionMemory(100)
    order: list[int] = []

    def take(number: int, size: int) -> None:
        with memory.share(size):
            order.append(number)

    held = memory.share(60)
    threads = []
    for number, size in enumerate((90, 20, 100)):  # the second would fit, but the first was there before it
        threads += start(lambda number=number, size=size: take(number, size))
        waiting(memory, number + 1)
    assert (memory.used, order) == (60, [])
    held.close()
    for thread in threads:
        thread.join(SECONDS)
    assert (order, memory.used, memory.waits) == ([0, 1, 2], 0, 3)


def test_a_thread_that_has_a_share_does_not_wait_for_itself() -> None:
    memory = DecompressionMemory(100)
    with memory.share(80), memory.share(80):
        assert memory.used == 160
    assert (memory.used, memory.waits) == (0, 0)


def test_a_share_above_the_budget_gets_all_of_it() -> None:
    memory = DecompressionMemory(100)
    with memory.share(10**9) as share:
        assert share.bytes == memory.used == 100
    share.close()
    assert memory.used == 0


def test_a_share_that_is_dropped_is_released() -> None:
    memory = DecompressionMemory(100)
    memory.share(70)
    assert memory.used == 0


def test_many_threads_never_take_more_than_the_budget() -> None:
    memory = DecompressionMemory(1000)
    above: list[int] = []

    def work(seed: int) -> None:
        for i in range(300):
            with memory.share(seed * i % 700):
                if memory.used > memory.limit:
                    above.append(memory.used)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(1, 17)))
    assert (above, memory.used) == ([], 0)


def test_a_caller_that_does_not_wait_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompression, "limit", 1 << 20)
    body = compress(4, bytes(1 << 18))
    with decompression.share(1 << 20), pytest.raises(DecompressionBusy):
        next(shared_pieces(4, body, wait=False))
    assert sum(len(memoryview(piece)) for piece in shared_pieces(4, body, wait=False)) == 1 << 18
    assert decompression.used == 0


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_above_the_budget_is_refused(monkeypatch: pytest.MonkeyPatch, codec: int) -> None:
    batch = build_batch([(None, bytes(1 << 20), 0, [])], codec=codec)
    assert validate(batch).error_code == 0
    refusals = decompression.refusals
    monkeypatch.setattr(decompression, "limit", 1 << 20)
    outcome = validate(batch)
    assert (outcome.error_code, outcome.message) == (
        INVALID_RECORD, "the records decompress to more than this broker accepts",
    )  # fmt: skip
    assert (decompression.refusals, decompression.used) == (refusals + 1, 0)
    assert len(list(iter_records(batch))) == 1  # one that is stored is read, whatever the budget is now
    assert decompression.used == 0


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_above_its_limit_is_refused(codec: int) -> None:
    batch = build_batch([(b"k", b"v" * size, 0, []) for size in (10, 92, 10)], codec=codec)
    assert validate(batch, max_decompressed_message_bytes=100).error_code == 0
    outcome = validate(batch, max_decompressed_message_bytes=99)
    assert (outcome.error_code, outcome.first_bad_record) == (INVALID_RECORD, -1)
    assert "max.decompressed.message.bytes" in outcome.message
    across_pieces = build_batch([(b"k", bytes(1 << 20), 0, [])], codec=codec)
    assert validate(across_pieces, max_decompressed_message_bytes=1 << 20).error_code == INVALID_RECORD
    assert validate(across_pieces, max_decompressed_message_bytes=(1 << 20) + 20).error_code == 0
    plain = build_batch([(b"k", b"v" * 92, 0, [])])
    assert validate(plain, max_decompressed_message_bytes=1).error_code == 0


@given(st.binary(max_size=2000), st.integers(1, 400), st.sampled_from(CODECS))
def test_a_claim_is_never_less_than_the_decompressed_size(seed: bytes, times: int, codec: int) -> None:
    data = seed * times
    forms = [compress(codec, data)]
    if codec == 2 and data:
        forms.append(snappy.compress(data))
    if codec == 3:
        forms.append(lz4.frame.compress(data, store_size=True, content_checksum=True, block_checksum=True))
        forms.append(lz4.frame.compress(data, block_size=7, block_linked=True, store_size=False))
    if codec == 4:
        forms.append(zstandard.ZstdCompressor(level=1).compress(data) * 2)
    for form in forms:
        claim = claim_of(codec, form)
        assert claim is not None
        plain = decompress(codec, form, 1 << 30)
        assert len(plain) == claim[0] if claim[1] else len(plain) <= claim[0]


@given(st.binary(max_size=300), st.sampled_from(CODECS))
def test_any_bytes_may_claim_anything(data: bytes, codec: int) -> None:
    heads = {1: b"\x1f\x8b", 2: b"", 3: b"\x04\x22\x4d\x18", 4: b"\x28\xb5\x2f\xfd"}
    for body in (data, heads[codec] + data):
        claim = claim_of(codec, body) if body else None
        assert claim is None or (claim[0] >= 0 and claim[2] >= 0)


def test_a_gzip_trailer_with_a_false_size_is_an_error() -> None:
    batch = bytearray(build_batch([(None, bytes(1 << 20), 0, [])], codec=1))
    batch[-4:] = (1000).to_bytes(4, "little")
    with pytest.raises(CorruptRecordsError):
        list(iter_records(batch))
    assert decompression.used == 0
