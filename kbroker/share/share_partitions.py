"""The partition side of share groups: the interface for handlers and the group coordinator (KIP-932)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from kbroker.clock import Clock
from kbroker.coordinator.runtime.event_loop import EventLoop
from kbroker.coordinator.runtime.result import complete
from kbroker.coordinator.share_state.store import ShareKey, ShareStateStore
from kbroker.errors import ErrorCode, KafkaError
from kbroker.futures import gather, gather_errors, map_future
from kbroker.limits import SHARE_SESSION_IDLE_MS, SHARE_SESSION_PARTITIONS_MAX, SHARE_SLOT_WAIT_MS_MAX
from kbroker.share.acknowledgement import AcknowledgementBatch
from kbroker.share.answer_memory import ShareAnswerMemory
from kbroker.share.partition_cache import PartitionCache, ReadCold
from kbroker.share.requests import (
    AcknowledgeAnswer,
    AcknowledgeRequest,
    Connection,
    FetchAnswer,
    FetchRequest,
    PartitionAnswer,
)
from kbroker.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, SessionKey, ShareSessions, TopicIdPartition
from kbroker.share.settings import ShareSettings
from kbroker.share.start_offset import OffsetForTime
from kbroker.share.waiting_fetches import WaitingFetches

Acknowledged = dict[TopicIdPartition, KafkaError | None]


class SharePartitions:
    """Any thread may call its public methods; all but `start` and `stop` only post to the loop, whose thread alone
    uses share partitions, sessions and waiting fetches: none of them has a lock.

    `settings_of` returns a group's current configs; `answer_bytes` bounds all unsent answers. The other arguments are
    PartitionCache's and ShareSessions'.
    """

    def __init__(
        self,
        clock: Clock,
        store: ShareStateStore,
        *,
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
        self.answers = ShareAnswerMemory(answer_bytes)
        self.waiting = WaitingFetches(self.loop, self.answers)
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
        self.waiting.end_all()
        for done in list(self._unanswered):  # they wait for writes, or for a slot
            _fail(done, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    # -- the group side ------------------------------------------------------------------------------------------

    def member_left(self, group_id: str, member_id: str) -> None:
        """The member has left the group: its fetch ends. Its session stays, so that it can acknowledge records."""
        self.loop.post(partial(self.waiting.end, SessionKey(group_id, member_id)))

    def before_state_reset(self, group_id: str, topic_id: bytes, index: int, proceed: Callable[[], None]) -> None:
        """The durable state is about to be reset or deleted (ShareStates.before_reset): writes must stop.

        A write after the deletion would find no state.
        """

        def drop() -> None:
            self.cache.drop(ShareKey(group_id, topic_id, index))
            proceed()

        self.loop.post(drop)

    def state_reset(self, group_id: str, topic_id: bytes, index: int) -> None:
        """The durable state was reset or deleted (ShareStates.on_reset): what is held of it is void."""
        self.loop.post(partial(self.cache.drop, ShareKey(group_id, topic_id, index)))

    def partition_resigned(self, topic_id: bytes, index: int) -> None:
        """The partition is not led here any more: what its groups hold of it is void."""
        self.loop.post(partial(self.cache.drop_resigned, topic_id, index))

    # -- the ends of sessions and connections --------------------------------------------------------------------

    def _session_ended(self, member: SessionKey) -> None:
        """Ends the member's fetch and releases what it holds."""
        self.waiting.end(member)
        for share_partition in self.cache.of_group(member.group_id):
            share_partition.release(member.member_id)
        self.loop.post(partial(self.cache.drop_unused, member.group_id))  # later: another session may follow at once

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
        lock_duration_ms = self.settings_of(request.member.group_id).lock_duration_ms
        self._acknowledge_all(request).add_done_callback(
            lambda acknowledged: complete(done, AcknowledgeAnswer(lock_duration_ms, acknowledged.result()))
        )
        if final:
            self._close_session(request.member)

    def _close_session(self, member: SessionKey) -> None:
        self.sessions.close(member)
        self._session_ended(member)

    def _acknowledge_all(self, request: AcknowledgeRequest | FetchRequest) -> Future[Acknowledged]:
        """An error or None for each partition; done on the loop thread when all are durable or refused."""
        asked = request.acknowledgements
        taken = [
            self._acknowledge_one(request.member, where, batches, request.renew) for where, batches in asked.items()
        ]
        return map_future(
            gather_errors(taken), lambda errors: dict(zip(asked, map(_kafka_error, errors), strict=True))
        )

    def _acknowledge_one(
        self, member: SessionKey, where: TopicIdPartition, batches: Sequence[AcknowledgementBatch], renew: bool
    ) -> Future[None]:
        key = ShareKey(member.group_id, *where)
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
        is_new = request.session_epoch == INITIAL_EPOCH
        acknowledged = self._acknowledge_all(request)
        fetched: Future[None] = Future()

        def answered(_: Future[Any]) -> None:
            answer.acknowledged = acknowledged.result()
            if is_new:  # the first answer names every partition
                for where in partitions:
                    answer.partitions.setdefault(where, PartitionAnswer())
            complete(done, answer)

        parts: list[Future[Any]] = [acknowledged, fetched]
        gather(parts).add_done_callback(answered)
        if request.session_epoch == FINAL_EPOCH:
            self._close_session(request.member)
            fetched.set_result(None)
            return
        shared = [(where, self.cache.get(ShareKey(group_id, *where))) for where in partitions]
        # It may wait for long: without its completed acknowledgements.
        request = replace(request, partitions=(), forgotten=(), acknowledgements={})
        self.waiting.begin(request, shared, answer, lambda: fetched.set_result(None))

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


def _kafka_error(error: BaseException | None) -> KafkaError | None:
    if error is None or isinstance(error, KafkaError):
        return error
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
