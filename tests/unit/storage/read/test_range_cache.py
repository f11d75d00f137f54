"""Range cache: pieces, single flight, eviction, and what readers keep alive."""

from __future__ import annotations

import gc
import threading
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kbroker.storage.formats.klix import encode_object
from kbroker.storage.read.cached_pieces import Cut
from kbroker.storage.read.footer_cache import FooterCache
from kbroker.storage.read.range_cache import RangeCache
from kbroker.storage.read.read_sharing import OffsetRange
from kbroker.storage.read.single_flight import SingleFlight
from tests.unit.storage.read.object_bucket import batches, parsed

P = ("topic", 0)
ONE = ("key", "etag", 0)
OTHER = ("key", "etag", 1000)


class Loader:
    """Bytes that tell their position, cut every `piece` bytes; remembers what was asked for."""

    def __init__(self, piece: int = 10) -> None:
        self.piece = piece
        self.calls: list[tuple[int, int]] = []

    def __call__(self, start: int, end: int):
        self.calls.append((start, end))
        data = bytes(position % 251 for position in range(start, end))
        cuts = [*range(self.piece, end - start, self.piece), end - start]
        return data, [Cut(cut, OffsetRange(P, start + cut - self.piece, start + cut)) for cut in cuts]


def read_ahead(cache: RangeCache, image, start: int, end: int, loader) -> None:
    for load in cache.plan(image, start, end):
        cache.load_ahead(image, load, loader)


def joined(pieces, start: int, end: int) -> bytes:
    return b"".join(bytes(piece.view(start, end)) for piece in pieces)


def test_a_range_is_loaded_once_and_served_in_pieces() -> None:
    cache, loader = RangeCache(1000), Loader()
    pieces, end = cache.load(ONE, 0, 45, loader)
    assert [(piece.start, piece.end) for piece in pieces] == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 45)]
    assert end == 45
    assert joined(cache.get(ONE, 12, 33), 12, 33) == bytes(range(12, 33))
    assert joined(cache.load(ONE, 40, 45, loader)[0], 40, 45) == bytes(range(40, 45))
    assert loader.calls == [(0, 45)]
    assert cache.get(ONE, 45, 50) == []
    assert (cache.misses, cache.hits, cache.used_bytes) == (1, 2, 45)


def test_images_of_one_object_do_not_mix() -> None:
    cache, loader = RangeCache(1000), Loader()
    cache.load(ONE, 0, 50, loader)
    assert cache.get(OTHER, 10, 20) == []
    assert cache.get(("key", "other etag", 0), 10, 20) == []


def test_cached_bytes_are_not_loaded_again() -> None:
    cache, loader = RangeCache(1000), Loader()
    cache.load(ONE, 30, 50, loader)
    pieces, end = cache.load(ONE, 0, 100, loader)
    assert loader.calls == [(30, 50), (0, 30)]
    assert (joined(pieces, 0, 100), end) == (bytes(range(30)), 30)
    assert joined(cache.get(ONE, 0, 100), 0, 100) == bytes(range(50))


def test_readers_of_one_place_share_one_load() -> None:
    cache, loader = RangeCache(1000), Loader()
    entered, go_on = threading.Event(), threading.Event()

    def slow(start: int, end: int):
        entered.set()
        assert go_on.wait(20)
        return loader(start, end)

    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(cache.load, ONE, 0, 40, slow)
        assert entered.wait(20)
        others = [pool.submit(cache.load, ONE, place, 60, slow) for place in (0, 10, 25)]
        after = pool.submit(cache.load, ONE, 40, 60, loader)  # not part of it: loads by itself
        assert joined(after.result(20)[0], 40, 60) == bytes(range(40, 60))
        wait_until(cache, lambda: cache.joined == 3)
        go_on.set()
        assert joined(first.result(20)[0], 0, 40) == bytes(range(40))
        for place, other in zip((0, 10, 25), others, strict=True):
            assert joined(other.result(20)[0], place, 40) == bytes(range(place, 40))
    assert loader.calls == [(40, 60), (0, 40)]


def wait_until(cache: RangeCache, reached) -> None:
    for _ in range(10_000_000):
        if reached():
            return
    raise AssertionError("never reached")


def test_all_waiting_readers_get_the_error_and_the_next_one_retries() -> None:
    cache, loader = RangeCache(1000), Loader()
    entered, go_on = threading.Event(), threading.Event()

    def failing(start: int, end: int):
        entered.set()
        assert go_on.wait(20)
        raise OSError("no")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.load, ONE, 0, 40, failing)
        assert entered.wait(20)
        second = pool.submit(cache.load, ONE, 10, 40, failing)
        wait_until(cache, lambda: cache.joined == 1)
        go_on.set()
        for future in (first, second):
            with pytest.raises(OSError, match="no"):
                future.result(20)
    assert joined(cache.load(ONE, 0, 40, loader)[0], 0, 40) == bytes(range(40))


def test_the_least_recently_used_piece_is_evicted_first() -> None:
    cache, loader = RangeCache(100), Loader(20)
    cache.load(ONE, 0, 80, loader)
    cache.get(ONE, 0, 20)
    cache.load(OTHER, 0, 40, loader)
    assert cache.used_bytes <= 100
    assert cache.get(ONE, 0, 20)
    assert cache.get(ONE, 20, 40)
    assert not cache.get(ONE, 60, 80)
    assert cache.get(OTHER, 0, 40)


def test_what_is_read_ahead_and_thrown_away_counts_as_wasted() -> None:
    cache, loader = RangeCache(100), Loader(20)
    read_ahead(cache, ONE, 0, 100, loader)
    cache.get(ONE, 0, 20)
    for place in range(0, 1000, 100):
        cache.load(OTHER, place, place + 20, loader)
    assert cache.wasted_bytes == 40  # the rest takes no more than half of the room
    assert (cache.pieces.ahead_bytes, cache.pieces.ahead_used_bytes) == (100, 20)


def test_a_scan_does_not_evict_what_is_read_again() -> None:
    cache, loader = RangeCache(100), Loader(20)
    cache.load(ONE, 0, 40, loader)
    cache.get(ONE, 0, 40)  # a second reader
    for place in range(0, 10_000, 20):
        cache.load(OTHER, place, place + 20, loader)
        cache.load(("scan", "etag", 0), place, place + 20, loader)
    assert joined(cache.get(ONE, 0, 40), 0, 40) == bytes(range(40))


def test_a_reader_that_continues_within_a_piece_reads_it_once() -> None:
    cache, loader = RangeCache(100), Loader(20)
    cache.load(ONE, 0, 20, loader, until=5)
    for start in range(5, 20, 5):
        cache.get(ONE, start, start + 5)
    assert (len(cache.pieces.once), len(cache.pieces.again)) == (1, 0)
    cache.get(ONE, 10, 15)
    assert (len(cache.pieces.once), len(cache.pieces.again)) == (0, 1)


def test_what_is_read_again_takes_at_most_half() -> None:
    cache, loader = RangeCache(100), Loader(20)
    for _ in range(2):
        cache.load(ONE, 0, 80, loader)
    assert cache.pieces.again.used_bytes == 40
    assert cache.pieces.once.used_bytes == 40


def test_read_ahead_skips_what_is_cached_or_being_loaded() -> None:
    cache, loader = RangeCache(1000), Loader()
    cache.load(ONE, 20, 30, loader)
    entered, go_on = threading.Event(), threading.Event()

    def slow(start: int, end: int):
        entered.set()
        assert go_on.wait(20)
        return loader(start, end)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(cache.load, ONE, 40, 60, slow)
        assert entered.wait(20)
        read_ahead(cache, ONE, 0, 80, loader)  # does not wait for it
        go_on.set()
        running.result(20)
    assert sorted(loader.calls) == [(0, 20), (20, 30), (30, 40), (40, 60), (60, 80)]
    assert joined(cache.get(ONE, 0, 80), 0, 80) == bytes(range(80))


def test_room_is_made_before_a_load() -> None:
    cache, loader = RangeCache(100), Loader(20)
    cache.load(ONE, 0, 100, loader)
    used = []

    def watching(start: int, end: int):
        used.append(cache.used_bytes)
        return loader(start, end)

    cache.load(OTHER, 0, 60, watching)
    assert used == [40]


def reader_at(*places: int):
    """Distances as ReaderPositions gives them, for readers of ONE and OTHER at these places."""

    def distance(offsets: OffsetRange) -> int | None:
        before = [place for place in places if place < offsets.end_offset]
        return max(0, offsets.base_offset - max(before)) if before else None

    return distance


def test_pieces_that_no_reader_will_come_to_are_evicted_first() -> None:
    cache, loader = RangeCache(200, reader_at(100)), Loader(20)
    for _ in range(2):
        cache.load(ONE, 0, 100, loader)  # read twice, and all readers have passed
    cache.load(ONE, 100, 200, loader)  # a reader will come to this, which was read once, and before that
    cache.load(OTHER, 0, 100, loader)
    assert [piece.start for piece in cache.get(ONE, 100, 200)] == [100, 120, 140, 160, 180]
    assert cache.get(ONE, 0, 20) == []


def test_of_pieces_that_readers_will_come_to_the_furthest_is_evicted_first() -> None:
    cache, loader = RangeCache(200, reader_at(20, 190)), Loader(20)
    cache.load(ONE, 0, 200, loader)
    cache.load(OTHER, 0, 60, loader)
    # The reader at 190 is in the last piece, the one at 20 furthest from those before it. No reader will come to the
    # first.
    assert cache.get(ONE, 0, 20) == []
    assert [piece.start for piece in cache.get(ONE, 20, 200)] == [20, 40, 60, 80, 100, 120]
    assert cache.get(ONE, 180, 200)


def test_a_reader_further_away_than_the_cache_is_large_does_not_count() -> None:
    cache, loader = RangeCache(100, reader_at(0)), Loader(20)
    cache.load(ONE, 500, 540, loader)
    cache.load(ONE, 0, 40, loader)
    cache.load(OTHER, 0, 60, loader)
    assert cache.get(ONE, 500, 520) == []
    assert cache.get(ONE, 0, 40)


def test_covered_sees_what_is_there_and_what_was_planned() -> None:
    cache, loader = RangeCache(1000), Loader(20)
    assert cache.covered(ONE, 0, 100) == 0
    cache.load(ONE, 0, 40, loader)
    (planned,) = cache.plan(ONE, 20, 60)
    assert (planned.start, planned.end) == (40, 60)
    assert cache.plan(ONE, 0, 60) == []
    assert cache.covered(ONE, 0, 100) == 60
    assert cache.covered(ONE, 0, 30) == 40  # whole pieces
    cache.cancel(ONE, planned)
    assert cache.covered(ONE, 0, 100) == 40
    cache.load_ahead(ONE, planned, loader)  # too late
    assert loader.calls == [(0, 40)]


def test_a_reader_does_not_wait_for_what_is_only_planned() -> None:
    cache, loader = RangeCache(1000), Loader(20)
    (planned,) = cache.plan(ONE, 0, 60)
    pieces, end = cache.load(ONE, 20, 100, loader)
    assert (joined(pieces, 20, 60), end) == (bytes(range(20, 60)), 60)
    cache.load_ahead(ONE, planned, loader)
    cache.cancel(ONE, planned)
    assert loader.calls == [(0, 60)]
    assert cache.covered(ONE, 0, 100) == 60


def test_lent_bytes_are_those_that_readers_still_hold() -> None:
    cache, loader = RangeCache(100), Loader(20)
    view = cache.load(ONE, 0, 80, loader)[0][0].view(0, 5)
    cache.load(OTHER, 0, 100, loader)
    gc.collect()
    assert bytes(view) == bytes(range(5))
    assert cache.lent_bytes == 20  # the piece of the view and not the 80 bytes that were loaded
    assert not cache.crowded
    views = [cache.load((str(n), "etag", 0), 0, 20, loader)[0][0].view(0, 1) for n in range(20)]
    assert cache.crowded
    assert cache.used_bytes >= 50 - 20  # lent bytes leave the cache half of its capacity
    del view, views
    gc.collect()
    assert cache.lent_bytes == 0
    assert not cache.crowded


def test_bytes_of_an_array_that_is_one_piece_count_as_lent_while_readers_hold_them() -> None:
    cache, loader = RangeCache(100), Loader(1000)

    def arrays(begin: int, end: int) -> tuple[np.ndarray, list[Cut]]:
        data, cuts = loader(begin, end)
        return np.array(bytearray(data)), cuts  # memory of its own, as what was read from an object

    views = [cache.load((str(n), "etag", 0), 0, 40, arrays)[0][0].view(0, 1) for n in range(5)]
    gc.collect()
    assert cache.lent_bytes == 5 * 40 - cache.used_bytes > 0
    assert cache.crowded
    del views
    gc.collect()
    assert cache.lent_bytes == 0


def test_a_piece_larger_than_the_cache_stays_until_the_next_load() -> None:
    cache, loader = RangeCache(100), Loader(180)
    cache.load(OTHER, 0, 60, loader)
    cache.load(ONE, 0, 180, loader)
    assert cache.used_bytes == 180
    assert joined(cache.get(ONE, 0, 180), 0, 180) == bytes(range(180))
    cache.load(OTHER, 0, 10, loader)
    assert cache.used_bytes == 10


def test_what_a_reader_needs_first_is_evicted_last() -> None:
    cache, loader = RangeCache(200), Loader(40)
    cache.load(ONE, 0, 120, loader)
    cache.load(OTHER, 0, 120, loader)
    assert [piece.start for piece in cache.get(ONE, 0, 120)] == [0, 40]


def test_put_caches_bytes_that_were_read_with_others() -> None:
    cache = RangeCache(1000)
    cache.put(ONE, 100, bytes(30), [Cut(10, None), Cut(30, None)])
    assert [(piece.start, piece.end) for piece in cache.get(ONE, 100, 130)] == [(100, 110), (110, 130)]
    cache.put(ONE, 100, bytes(30), [Cut(10, None), Cut(30, None)])
    assert cache.used_bytes == 30


def test_footers_are_read_once_and_bounded_by_bytes() -> None:
    footers = [parsed(encode_object(batches(0, count))) for count in (10, 20, 30)]
    cache = FooterCache(32 * 45)
    read = []

    def loader(number: int):
        read.append(number)
        return footers[number]

    for number in (0, 1, 0, 1):
        assert cache.load(("key", "etag", number), lambda n=number: loader(n)) is footers[number]
    assert read == [0, 1]
    cache.load(("key", "etag", 2), lambda: loader(2))
    assert cache.get(("key", "etag", 0)) is None
    assert cache.used_bytes == footers[2].nbytes


class WatchedKey:
    """Equal to all others; signals when a call with it finds the running one."""

    found = threading.Event()

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        self.found.set()
        return isinstance(other, WatchedKey)


def test_single_flight_runs_a_call_once_at_a_time() -> None:
    flights: SingleFlight[Hashable, int] = SingleFlight()
    entered, go_on = threading.Event(), threading.Event()

    def call() -> int:
        entered.set()
        assert go_on.wait(20)
        return 7

    def never() -> int:
        raise AssertionError("a call with this key runs already")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(flights.do, WatchedKey(), call)
        assert entered.wait(20)
        assert flights.do("another", lambda: 8) == 8
        second = pool.submit(flights.do, WatchedKey(), never)
        assert WatchedKey.found.wait(20)
        go_on.set()
        assert (first.result(20), second.result(20)) == (7, 7)
    assert flights.do(WatchedKey(), lambda: 9) == 9
