"""Which callbacks a commit runs, when, and what a failing one does to the others."""

from __future__ import annotations

import os

import pytest

from kbroker._fast.wal.commit import CommitQueue


def test_items_complete_in_order_up_to_the_durable_position() -> None:
    queue, done = CommitQueue(), []
    for end in range(1, 3001):
        queue.push_callback(end, lambda error, end=end: done.append((end, error)))
    queue.drain(0)
    assert done == []
    queue.drain(1500)
    assert done == [(end, 0) for end in range(1, 1501)]
    assert len(queue) == 1500
    queue.drain(3000)
    assert len(done) == 3000
    assert queue.drained_lsn == 3000


def test_a_failing_callback_is_raised_after_all_others_ran() -> None:
    queue, done = CommitQueue(), []
    queue.push_callback(1, done.append)
    queue.push_callback(2, lambda error: 1 // 0)
    queue.push_callback(3, done.append)
    with pytest.raises(ZeroDivisionError):
        queue.drain(3)
    assert done == [0, 0]


def test_callbacks_may_push() -> None:
    queue, done = CommitQueue(), []
    queue.push_callback(1, lambda error: queue.push_callback(2, done.append))
    queue.drain(2)
    assert done == [0]


def test_a_failed_queue_fails_later_pushes() -> None:
    queue, done = CommitQueue(), []
    queue.push_callback(5, done.append)
    queue.fail_all(56)
    assert done == [56]
    queue.push_callback(6, done.append)
    queue.drain(0)
    assert done == [56, 56]


def test_a_push_below_the_drained_position_asks_for_another_drain() -> None:
    queue, done = CommitQueue(), []
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    queue.add_wakeup_fd(fd)
    queue.drain(10)
    queue.push_callback(11, done.append)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(fd)
    queue.push_callback(7, done.append)
    assert os.eventfd_read(fd) == 1
    queue.remove_wakeup_fd(fd)
    os.close(fd)
    queue.drain(11)
    assert done == [0, 0]
