import threading

import pytest

from kbroker.clock import ManualClock
from kbroker.storage.flush.pacing import PIECE_BYTES_MIN, PacedBody, Pacer
from kbroker.storage.stores.joined_body import JoinedBody
from kbroker.storage.stores.object_store import BytesBody, read_exactly


def paced(rate):
    clock = ManualClock()
    pacer = Pacer(clock.monotonic, clock.advance)
    pacer.set_rate(rate)
    return clock, pacer


def test_bytes_wait_for_the_rate():
    clock, pacer = paced(1000)
    start = clock.monotonic()
    for _ in range(11):
        pacer.acquire(100)
    assert 0.99 <= clock.monotonic() - start <= 1.11


def test_without_a_rate_nothing_waits():
    clock, pacer = paced(1)
    pacer.acquire(1000)
    pacer.set_rate(0)
    start = clock.monotonic()
    pacer.acquire(10**9)
    assert clock.monotonic() == start


def test_body_is_unchanged():
    clock, pacer = paced(1000)
    body = PacedBody(BytesBody(b"0123456789" * 50), pacer)
    out = bytearray(500)
    for position in range(0, 500, 100):
        read_exactly(body, position, memoryview(out)[position : position + 100])
    assert bytes(out) == b"0123456789" * 50
    assert clock.monotonic() >= 1000.39


def test_pieces_are_small_where_the_rate_is_low():
    _, pacer = paced(1 << 20)
    assert pacer.piece_bytes(1 << 20) == PIECE_BYTES_MIN
    assert pacer.piece_bytes(1000) == 1000
    assert PacedBody(BytesBody(bytes(1 << 20)), pacer).read_into(0, memoryview(bytearray(1 << 20))) == PIECE_BYTES_MIN
    pacer.set_rate(100 << 20)
    assert PIECE_BYTES_MIN < pacer.piece_bytes(1 << 20) < 1 << 20
    pacer.set_rate(0)
    assert pacer.piece_bytes(1 << 20) == 1 << 20


class Sending(BytesBody):
    """Sends what it is asked for, but no more than `most` in all."""

    def __init__(self, data, most):
        super().__init__(data)
        self.left, self.asked = most, []

    def send_to(self, position, limit, fd, timeout_ms, rate):
        self.asked.append((limit, rate))
        sent = min(self.left, limit)
        self.left -= sent
        return sent


def test_a_body_that_sends_itself_spreads_what_it_sends():
    rate, went = 10 << 20, []
    clock = ManualClock()
    pacer = Pacer(clock.monotonic, clock.advance, lambda: float(rate), went.append)
    inner = Sending(bytes(16 << 20), 6 << 20)
    body = PacedBody(inner, pacer)
    start, position = clock.monotonic(), 0
    while sent := body.send_to(position, 4 << 20, -1, 0):
        position += sent
    assert inner.asked == [(2 << 20, rate)] * 4  # 0.2 s of the rate each
    assert went == [2 << 20] * 3  # the last call sent nothing
    assert clock.monotonic() - start == pytest.approx(6 / 10, rel=0.1)  # what comes next waits for what went
    assert body.read_into(position, memoryview(bytearray(1 << 20))) > 0
    assert clock.monotonic() - start == pytest.approx(6 / 10, rel=0.1)  # and for nothing that did not
    assert body.send_to(position, 4 << 20, -1, 0) == 0
    assert inner.asked[-1] == (PIECE_BYTES_MIN, rate)  # of what must be read


def test_other_threads_do_not_wait_for_bytes_beyond_the_end_of_a_body():
    clock, pacer = paced(1 << 20)

    class Last(Sending):
        def send_to(self, *arguments):
            start = clock.monotonic()
            pacer.acquire(1)  # another thread's request, while this is sent
            assert clock.monotonic() - start < 0.01
            return super().send_to(*arguments)

    body = Last(bytes(1000), 1000)
    assert PacedBody(body, pacer).send_to(0, 4 << 20, -1, 0) == 1000
    assert body.asked == [(1000, 1 << 20)]


def test_a_send_that_waited_for_others_has_no_limit_once_the_rate_is_lifted():
    clock = ManualClock()
    rates = [1000.0]
    pacer = Pacer(clock.monotonic, lambda seconds: rates.__setitem__(0, 0.0), lambda: rates[0])
    pacer.acquire(1000)
    inner = Sending(bytes(5000), 5000)
    assert PacedBody(inner, pacer).send_to(0, 5000, -1, 0) == 5000
    assert inner.asked == [(5000, 0)]


def test_parts_are_sent_at_the_rate():
    inner = Sending(bytes(1000), 1000)
    assert JoinedBody([BytesBody(b"head"), inner]).send_to(4, 500, -1, 0, 123) == 500
    assert inner.asked == [(500, 123)]


def test_a_rate_function_takes_effect_at_once():
    clock = ManualClock()
    rates = iter([1000.0, 1000.0, 0.0])
    pacer = Pacer(clock.monotonic, clock.advance, lambda: next(rates))
    start = clock.monotonic()
    pacer.acquire(100)
    pacer.acquire(100)  # waits, and finds that there is no limit any more
    assert clock.monotonic() - start < 0.11


def test_idle_time_earns_a_little_credit():
    clock, pacer = paced(1000)
    clock.advance(60)
    start = clock.monotonic()
    for _ in range(11):
        pacer.acquire(100)
    assert 0.89 <= clock.monotonic() - start <= 1.01


def test_threads_share_the_rate_and_each_call_waits_once():
    clock, lock, waits = ManualClock(), threading.Lock(), []

    def wait(seconds):
        with lock:
            waits.append(seconds)
            clock.advance(seconds)

    pacer = Pacer(clock.monotonic, wait)
    pacer.set_rate(10_000)

    def take():
        for _ in range(20):
            pacer.acquire(100)

    threads = [threading.Thread(target=take) for _ in range(4)]
    start = clock.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.monotonic() - start >= 0.68  # 79 pieces of 10 ms, and a tenth of a second of credit
    assert len(waits) <= 80
