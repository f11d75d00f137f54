"""What a debug build asserts of I/O threads."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from kbroker import io_threads
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import NotFound, ObjectMeta
from kbroker.storage.stores.store_wrappers import RetryingStore


def head_on(thread_name: str) -> Future[ObjectMeta]:
    store = RetryingStore(MemoryStore(), RetryPolicy())
    with ThreadPoolExecutor(1, thread_name_prefix=thread_name) as pool:
        return pool.submit(store.head, "key")


def test_a_debug_build_fails_when_an_io_thread_waits_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_threads, "DEBUG_BUILD", True)
    with pytest.raises(AssertionError, match="would wait"):
        head_on(io_threads.NAME_PREFIX).result()
    with pytest.raises(NotFound):
        head_on("another").result()


def test_another_build_does_not_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_threads, "DEBUG_BUILD", False)
    with pytest.raises(NotFound):
        head_on(io_threads.NAME_PREFIX).result()
