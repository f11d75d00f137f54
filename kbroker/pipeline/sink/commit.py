"""Commits what the tasks of a job or micro-batch have written: all of it or nothing, even if the driver dies meanwhile.

Three steps: check that all transactions are open and have time left; make the decision durable (`decisions`); commit
each. A driver that restarts after the second step finishes the third; before that step nothing is ever committed.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.client.cluster_client import ClusterClient
from kbroker.clock import Clock
from kbroker.pipeline.sink.decisions import Decision, decide, forget, group_of, last_decision
from kbroker.pipeline.sink.errors import SinkError
from kbroker.pipeline.sink.options import SinkOptions
from kbroker.pipeline.sink.task import Written, ids_of, transactional_id
from kbroker.pipeline.sink.transactions import COMMITTED, COMMITTING, ONGOING, OpenTransaction, Transactions
from kbroker.protocol.apis.transactions.k65_describe_transactions import TransactionState

COMMIT_MS = 30_000  # that a transaction must have left when its commit is decided


class JobCommit:
    """Ends the transactions of one query or batch job. Not thread-safe. Raises SinkError and ClientError."""

    def __init__(self, client: ClusterClient, options: SinkOptions, job_id: str, clock: Clock) -> None:
        self._client = client
        self._options = options
        self._job_id = job_id
        self._clock = clock
        self._transactions = Transactions(client, options)

    def commit(self, written: Sequence[Written], epoch: int) -> None:
        """Commits what these tasks have written as micro-batch `epoch`."""
        if any(each.decided for each in written):
            self._finish_decided(epoch)
        elif opened := {each.transaction: each for each in written if each.transaction is not None}:
            topics = self._check(list(opened))
            attempts = tuple(sorted((each.task, each.attempt) for each in opened.values()))
            topic = self._options.topic or min(topics)
            decide(self._client, self._job_id, topic, Decision(epoch, attempts))
            self._finish(list(opened), epoch)
        # Those of attempts whose task another attempt has completed.
        self._transactions.abort_open(ids_of(self._options, self._job_id))

    def forget(self) -> None:
        """For a job that is never repeated: deletes its decision, once it has been carried out."""
        forget(self._client, self._job_id)

    def abort(self, epoch: int, *, is_last: bool) -> None:
        """Aborts what is open, unless its commit has been decided. Spark calls it after a failed commit too.

        Tasks may still run, and Spark may kill them at any moment. For a job that is never repeated (`is_last`), the
        decision becomes to commit nothing: a task checks for that before its first row, and is fenced after it.
        """
        decision = last_decision(self._client, self._job_id)
        kept = self._ids(decision) if decision.epoch >= epoch else []
        if is_last and decision.epoch < epoch and self._options.topic is not None:
            decide(self._client, self._job_id, self._options.topic, Decision(epoch, ()))
        self._transactions.abort_open(ids_of(self._options, self._job_id), kept)

    def _check(self, opened: Sequence[OpenTransaction]) -> set[str]:
        """The topics written to. SinkError if a transaction is no longer open, or not for long enough."""
        topics: set[str] = set()
        states = self._transactions.states([each.transactional_id for each in opened])
        for each in opened:
            state = states[each.transactional_id]
            if state is None or not self._is_committable(each, state):
                raise SinkError(
                    f"nothing was committed: transaction {each.transactional_id} is not open any more, or not for long "
                    "enough. From a task's first row to the commit a job may take kafka.transaction.timeout.ms "
                    f"({self._options.transaction_timeout_ms} ms); the broker's limit is transaction.max.timeout.ms"
                )
            topics.update(topic.topic for topic in state.topics)
        return topics

    def _is_committable(self, opened: OpenTransaction, state: TransactionState) -> bool:
        if state.transaction_state != ONGOING:
            return False
        if (state.producer_id, state.producer_epoch) != (opened.producer_id, opened.producer_epoch):
            return False
        left_ms = state.transaction_start_time_ms + state.transaction_timeout_ms - self._clock.now_ms()
        return left_ms >= min(COMMIT_MS, state.transaction_timeout_ms // 2)

    def _finish_decided(self, epoch: int) -> None:
        """Commits what an earlier run has decided; a later decision implies that all before it is committed."""
        decision = last_decision(self._client, self._job_id)
        if decision.epoch != epoch:
            return
        opened, lost = [], []
        for name, state in self._transactions.states(self._ids(decision)).items():
            if state is not None and state.transaction_state == ONGOING:
                opened.append(OpenTransaction(name, state.producer_id, state.producer_epoch))
            elif state is None or state.transaction_state not in (COMMITTING, COMMITTED):
                lost.append(name)
        self._finish(opened, epoch, lost)

    def _finish(self, opened: Sequence[OpenTransaction], epoch: int, lost: Sequence[str] = ()) -> None:
        """Commits each. Raises SinkError for those that cannot be, once the others are."""
        refused = [each.transactional_id for each in opened if not self._transactions.commit(each)]
        if missing := [*lost, *refused]:
            raise SinkError(
                f"micro-batch {epoch} of {self._job_id} is committed in part: the broker had aborted {len(missing)} of "
                f"its transactions ({missing[0]}) after the commit was decided, as the driver was away for longer than "
                "kafka.transaction.timeout.ms. To write the micro-batch again as a whole, delete the group "
                f"{group_of(self._job_id)} and start the query again: then the committed part is in the topic twice"
            )
        self._transactions.wait_until_seen([each.transactional_id for each in opened])

    def _ids(self, decision: Decision) -> list[str]:
        return [transactional_id(self._options, self._job_id, task, attempt) for task, attempt in decision.attempts]
