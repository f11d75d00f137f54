"""The partition side of share groups: the interface for handlers and the group coordinator (KIP-932).

Every public method may be called by any thread and never blocks. One thread owns all share partitions, sessions and
waiting fetches, so none of them has a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from kbroker.clock import Clock
from kbroker.coordinator.runtime.event_loop import EventLoop, Timer
from kbroker.coordinator.runtime.result import complete
from kbroker.coordinator.share_state.store import ShareStateStore
from kbroker.errors import ErrorCode, KafkaError
from kbroker.limits import SHARE_SESSION_IDLE_MS, SHARE_SESSION_PARTITIONS_MAX, SHARE_SLOT_WAIT_MS_MAX
from kbroker.share.acknowledgement import AcknowledgementBatch
from kbroker.share.answer_memory import AnswerMemory
from kbroker.share.partition_cache import PartitionCache, ReadCold
from kbroker.share.requests import (
    AcknowledgeAnswer,
    Acknowledgements,
    AcknowledgeRequest,
    Connection,
    FetchAnswer,
    FetchRequest,
    PartitionAnswer,
)
from kbroker.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, SessionKey, ShareSessions, TopicIdPartition
from kbroker.share.settings import ShareSettings
from kbroker.share.share_fetch import ShareFetch
from kbroker.share.share_partition import PartitionKey
from kbroker.share.start_offset import OffsetForTime

Acknowledged = dict[TopicIdPartition, KafkaError | None]

_STARVED_RETRY_SECONDS = 0.05


class SharePartitions:
    """`settings_of` returns a group's current configs; `answer_bytes` bounds all unsent answers.

    The other arguments are PartitionCache's and ShareSessions'.
    """

    def __init__(
        self,
        clock: Clock,
        store: ShareStateStore,
        *,
        leader_epoch: int,
        find_log: Callable[[bytes, int], Any],
        settings_of: Callable[[str], ShareSettings],
        read_cold: ReadCold,
        offset_for_time: OffsetForTime,
        sessions_max: int,
        answer_bytes: int,
    ) -> None:
        self.loop = EventLoop(clock, "share-partitions")
        self.settings_of = settings_of
        self.cache = PartitionCache(
            self.loop,
            store,
            leader_epoch=leader_epoch,
            find_log=find_log,
            settings_of=settings_of,
            read_cold=read_cold,
            offset_for_time=offset_for_time,
            now_ms=clock.now_ms,
            is_used=lambda group_id: self.sessions.has_group(group_id),
        )
        self.sessions = ShareSessions(
            sessions_max,
            SHARE_SESSION_PARTITIONS_MAX,
            SHARE_SESSION_IDLE_MS / 1000,
            self.loop.monotonic,
            self._session_ended,
        )
        self.answers = AnswerMemory(answer_bytes)
        self._fetches: dict[SessionKey, ShareFetch] = {}  # waiting ones, one per member
        self._starved_timer: Timer | None = None
        self._unanswered: set[Future[Any]] = set()
        self._stopped = False

    def start(self) -> None:
        """Starts the thread."""
        self.loop.start()

    def stop(self) -> None:
        """Answers all waiting requests and ends the thread."""
        self.loop.post(self._stop)
        self.loop.stop()
        self.loop.run_pending()

    def _stop(self) -> None:
        self._stopped = True
        self.cache.close()
        for fetch in list(self._fetches.values()):
            fetch.end()
        for done in list(self._unanswered):  # they wait for writes, or for a slot
            _fail(done, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    # -- the group side ------------------------------------------------------------------------------------------

    def member_left(self, group_id: str, member_id: str) -> None:
        """The member has left the group: its fetch ends. Its session stays, so that it can acknowledge records."""
        self.loop.post(partial(self._end_waiting, SessionKey(group_id, member_id)))

    def before_state_reset(self, group_id: str, topic_id: bytes, index: int, go_on: Callable[[], None]) -> None:
        """The durable state is about to be reset or deleted (ShareStates.before_reset): writes must stop.

        A write after the deletion would find no state.
        """

        def drop() -> None:
            self.cache.drop(PartitionKey(group_id, topic_id, index))
            go_on()

        self.loop.post(drop)

    def state_reset(self, group_id: str, topic_id: bytes, index: int) -> None:
        """The durable state was reset or deleted (ShareStates.on_reset): what is held of it is void."""
        self.loop.post(partial(self.cache.drop, PartitionKey(group_id, topic_id, index)))

    # -- the ends of sessions and connections --------------------------------------------------------------------

    def _session_ended(self, member: SessionKey) -> None:
        """Ends the member's fetch and releases what it holds."""
        self._end_waiting(member)
        for share_partition in self.cache.of_group(member.group_id):
            share_partition.release(member.member_id)
        self.loop.post(partial(self.cache.drop_unused, member.group_id))  # later: another session may follow at once

    def _end_waiting(self, member: SessionKey) -> None:
        waiting = self._fetches.get(member)
        if waiting is not None:
            waiting.end()

    def _connection_closed(self, connection: Connection) -> None:
        """Any thread."""
        self.loop.post(partial(self._lost, connection))

    def _lost(self, connection: Connection) -> None:
        self.answers.forget(connection)
        for member in self.sessions.opened_on(connection):
            self._close_session(member)

    # -- ShareAcknowledge ----------------------------------------------------------------------------------------

    def acknowledge(self, request: AcknowledgeRequest) -> Future[AcknowledgeAnswer]:
        """Done when all acknowledgements are durable or refused. Fails with the session's KafkaError."""
        done: Future[AcknowledgeAnswer] = Future()
        self._post(partial(self._acknowledge, request, done), done)
        return done

    def _acknowledge(self, request: AcknowledgeRequest, done: Future[AcknowledgeAnswer]) -> None:
        final = request.session_epoch == FINAL_EPOCH
        if request.session_epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        if final:
            self.sessions.expect(request.member)
        else:
            self.sessions.advance(request.member, request.session_epoch)
        answer = AcknowledgeAnswer(self.settings_of(request.member.group_id).lock_duration_ms)
        self._take_acknowledgements(
            request.member,
            request.acknowledgements,
            request.renew,
            answer.acknowledged,
            lambda: complete(done, answer),
        )
        if final:
            self._close_session(request.member)

    def _close_session(self, member: SessionKey) -> None:
        self.sessions.close(member)
        self._session_ended(member)

    def _take_acknowledgements(
        self,
        member: SessionKey,
        acknowledgements: Acknowledgements,
        renew: bool,
        results: Acknowledged,
        on_done: Callable[[], None],
    ) -> None:
        """Puts an error or None for each partition into `results`, and calls `on_done` on the loop thread."""
        left = len(acknowledgements)
        if not left:
            on_done()

        def one_done(where: TopicIdPartition, result: Future[None]) -> None:
            nonlocal left
            results[where] = _error_of(result)
            left -= 1
            if left == 0:
                on_done()

        for where, batches in acknowledgements.items():
            taken = self._acknowledge_one(member, where, batches, renew)
            taken.add_done_callback(partial(one_done, where))

    def _acknowledge_one(
        self, member: SessionKey, where: TopicIdPartition, batches: Sequence[AcknowledgementBatch], renew: bool
    ) -> Future[None]:
        key = PartitionKey(member.group_id, *where)
        share_partition = self.cache.loaded(key)
        if share_partition is not None:
            return share_partition.acknowledge(member.member_id, batches, renew)
        refused: Future[None] = Future()
        found = self.cache.get(key)
        code = found if isinstance(found, ErrorCode) else ErrorCode.INVALID_RECORD_STATE
        refused.set_exception(KafkaError(code))  # not in memory: no member holds records of it
        return refused

    # -- ShareFetch ----------------------------------------------------------------------------------------------

    def fetch(self, request: FetchRequest) -> Future[FetchAnswer]:
        """Acknowledges, then acquires; done when both are. Fails with the session's KafkaError."""
        done: Future[FetchAnswer] = Future()
        connection = request.connection
        if connection.on_closed is None:
            connection.on_closed = partial(self._connection_closed, connection)
        self._post(partial(self._fetch, request, done), done)
        if connection.closed:  # perhaps before its on_closed was set
            self._connection_closed(connection)
        return done

    def _fetch(self, request: FetchRequest, done: Future[FetchAnswer]) -> None:
        self.answers.settle(request.connection)
        try:
            partitions = self._session_partitions(request)
        except KafkaError as error:
            if error.code is not ErrorCode.SHARE_SESSION_LIMIT_REACHED or request.max_wait_ms <= 0:
                raise
            # The client would retry at once: it waits here.
            waits_ms = min(request.max_wait_ms, SHARE_SLOT_WAIT_MS_MAX)
            self.loop.call_later(waits_ms / 1000, partial(_fail, done, error))
            return
        group_id = request.member.group_id
        answer = FetchAnswer(self.settings_of(group_id).lock_duration_ms)
        left = 2
        is_new = request.session_epoch == INITIAL_EPOCH

        def part_done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                if is_new:  # the first answer names every partition
                    for where in partitions:
                        answer.partitions.setdefault(where, PartitionAnswer())
                complete(done, answer)

        self._take_acknowledgements(
            request.member, request.acknowledgements, request.renew, answer.acknowledged, part_done
        )
        if request.session_epoch == FINAL_EPOCH:
            self._close_session(request.member)
            part_done()
            return
        shared = [(where, self.cache.get(PartitionKey(group_id, *where))) for where in partitions]
        # It may wait for long: without its completed acknowledgements.
        request = replace(request, partitions=(), forgotten=(), acknowledgements={})
        self._begin(request, shared, answer, part_done)

    def _begin(
        self, request: FetchRequest, shared: Sequence[Any], answer: FetchAnswer, on_done: Callable[[], None]
    ) -> None:
        def fetched() -> None:
            if self._fetches.get(request.member) is fetch:
                del self._fetches[request.member]
            on_done()

        earlier = self._fetches.get(request.member)
        if earlier is not None:  # the client did not wait for its answer
            earlier.end()
        fetch = ShareFetch(request, shared, answer, self.answers, fetched)
        self._fetches[request.member] = fetch
        if request.max_wait_ms > 0:
            fetch.timer = self.loop.call_later(request.max_wait_ms / 1000, partial(fetch.attempt, last=True))
        fetch.begin()
        if fetch.starved:
            self._retry_starved()

    def _retry_starved(self) -> None:
        """Retries fetches that lacked memory for their answers: no event tells that a client has read."""
        if self._starved_timer is None:
            self._starved_timer = self.loop.call_later(_STARVED_RETRY_SECONDS, self._starved_again)

    def _starved_again(self) -> None:
        self._starved_timer = None
        starved = [fetch for fetch in self._fetches.values() if fetch.starved]
        for fetch in starved:
            if fetch.open:
                fetch.attempt()
        if any(fetch.open and fetch.starved for fetch in starved):
            self._retry_starved()

    def _session_partitions(self, request: FetchRequest) -> list[TopicIdPartition]:
        """The partitions to fetch; raises KafkaError if the request does not fit its session."""
        member, epoch = request.member, request.session_epoch
        if epoch == FINAL_EPOCH:
            self.sessions.expect(member)
            return []
        if epoch != INITIAL_EPOCH:
            return self.sessions.advance(member, epoch, request.partitions, request.forgotten).in_turn()
        if request.acknowledgements:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Nothing can be acknowledged in a new share session.")
        return self.sessions.open(member, request.partitions, request.connection).in_turn()

    # -- dispatch ------------------------------------------------------------------------------------------------

    def _post(self, run: Callable[[], None], done: Future[Any]) -> None:
        def guarded() -> None:
            if self._stopped:
                _fail(done, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
                return
            self._unanswered.add(done)
            done.add_done_callback(self._unanswered.discard)
            try:
                run()
            except KafkaError as error:
                _fail(done, error)
            except Exception as error:
                _fail(done, error)
                raise

        self.loop.post(guarded)


def _fail(done: Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


def _error_of(result: Future[None]) -> KafkaError | None:
    error = result.exception()
    if error is None or isinstance(error, KafkaError):
        return error
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
