"""How a proposal is committed: the broker judges it; if none runs, the job claims the cluster and does it itself.

A job that owns the cluster for a moment has no log of its own, so it claims in the name of the data directory that
owned it last: that broker may start at any time, and fences the job off. Its claim says that it is a job; if
it dies, the next one may continue.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kbroker.admin.control import send_command
from kbroker.clock import Clock
from kbroker.cluster.config_changes import altered
from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.cluster.image import MetadataImage, TopicImage
from kbroker.errors import CorruptionError, KafkaError
from kbroker.limits import CLAIM_BYTES_MAX
from kbroker.pipeline.jobs.session import JobError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.claim_format import ClaimRecord, encode_claim
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.ledger.numbered_log_format import NONCE_BYTES
from kbroker.storage.ledger.ownership import CLAIMS_DIRECTORY, Claim, Superseded, newest_claim
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.rewrite.swap_proposal import RESULT, SMALL_BYTES_MAX, Proposal, Result, encode_result, proposal_key
from kbroker.storage.rewrite.swap_proposal_job import ProposingJob
from kbroker.storage.rewrite.swap_proposal_judge import PlaceRules, ProposalJudge
from kbroker.storage.stores.conditional_write import create_once
from kbroker.storage.stores.object_store import ObjectStore, StoreError
from kbroker.topic_config import TopicConfig, parse_topic_config

JOB_HOST = "kbroker-job:"  # how the host of a job's claim begins
POLL_SECONDS = 2.0
STALE_JOB_SECONDS = 60.0  # a job's claim that does not change for so long is abandoned
REQUEST_SECONDS = 30.0
CHECKPOINTS_NEVER = 1 << 62  # the next broker writes them


def topic_config(topics: MetadataImage, topic: TopicImage) -> TopicConfig:
    """A topic's configs as far as the bucket knows them: its own, and those set for all brokers at run time.

    Raises JobError. The bucket does not know topic defaults that a broker was started with.
    """
    try:
        configs = altered(BrokerConfigs(), topics.broker_configs)
        return parse_topic_config(topic.configs, configs.topic_defaults)
    except KafkaError as error:
        raise JobError(f"topic {topic.name} has configs that this kbroker refuses: {error}") from None


@dataclass(slots=True)
class Publisher:
    """Gets a stored proposal answered. `wait(seconds)` sleeps; `load_topics` reads the metadata as it is now."""

    store: ObjectStore
    keys: ObjectKeys
    clock: Clock
    load_topics: Callable[[], MetadataImage]
    wait: Callable[[float], object]
    say: Callable[[str], None]
    wait_seconds: float
    data_dir: Path | None = None  # of a broker on this machine, which is notified at once

    def publish(self, job: ProposingJob, proposal: Proposal) -> Result:
        """Returns the answer. Raises JobError if there is none; the proposal then stays, and may still be judged."""
        started = self.clock.monotonic()
        seen: ClaimRecord | None = None
        seen_at = started
        self._notify_broker()
        while True:
            answer = job.answer()
            if answer is not None:
                return answer
            holder = newest_claim(self.store, self.keys.root)
            if holder is None:
                raise JobError(f"{self.keys.root}: the cluster has no claim: it was lost")
            now = self.clock.monotonic()
            if holder != seen:
                seen, seen_at = holder, now
            dead_job = holder.host.startswith(JOB_HOST) and now - seen_at >= STALE_JOB_SECONDS
            if (holder.released or dead_job) and (answer := self._publish_as_owner(holder, proposal)) is not None:
                return answer
            if now - started >= self.wait_seconds:
                raise JobError(
                    f"no answer to the proposal {job.id} in {self.wait_seconds:.0f} s: the cluster is owned by epoch "
                    f"{holder.epoch} (host {holder.host}, pid {holder.pid}); if that broker is down, start it: it "
                    f"judges the proposal within a day. Nothing has been published"
                )
            self.wait(POLL_SECONDS)

    def _notify_broker(self) -> None:
        if self.data_dir is None:
            return
        try:
            send_command(self.data_dir, "proposals", self.wait_seconds)
        except (OSError, RuntimeError) as error:
            self.say(f"the broker of {self.data_dir} was not notified ({error}); it polls for proposals")

    # -- as the owner ------------------------------------------------------------------------------------------

    def _publish_as_owner(self, holder: ClaimRecord, proposal: Proposal) -> Result | None:
        """None if another owner claimed first: that one answers."""
        self.say("no broker runs: the job claims the cluster")
        retries = RetryPolicy(REQUEST_SECONDS, clock=self.clock)
        owned = self._claim_after(holder, retries)
        if owned is None:
            return None
        try:
            return self._judge(owned, proposal, retries)
        except (Fenced, Superseded):
            self.say("a broker has started meanwhile: it will judge the proposal")
            return None
        except CorruptionError as error:
            raise JobError(f"the bucket is damaged: {error}; nothing was published") from None
        finally:
            self._release(owned)

    def _claim_after(self, holder: ClaimRecord, retries: RetryPolicy) -> Claim | None:
        """Claims exactly the next epoch, or none: an owner that claims meanwhile must not lose the cluster to a job."""
        record = ClaimRecord(
            epoch=holder.epoch + 1,
            data_dir_id=holder.data_dir_id,
            host=(JOB_HOST + socket.gethostname())[:255],
            pid=os.getpid(),
            started_ms=self.clock.now_ms(),
            nonce=os.urandom(16).hex(),
            previous_epoch=holder.epoch,
            take_over=False,
        )
        key = f"{self.keys.root}{CLAIMS_DIRECTORY}{record.epoch:010d}.json"
        present = create_once(self.store, key, encode_claim(record), retries, CLAIM_BYTES_MAX)
        return Claim(self.store, self.keys.root, record, holder, retries) if present is None else None

    def _judge(self, owned: Claim, proposal: Proposal, retries: RetryPolicy) -> Result:
        log = NumberedLog(self.store, self.keys.manifest_dir, owned.epoch, os.urandom(NONCE_BYTES), retries=retries)
        topics = self.load_topics()
        manifest = Manifest(
            log,
            self.clock,
            root=self.keys.root,
            checkpoint_records=CHECKPOINTS_NEVER,
            record_version=lambda: topics.forms.record,  # no broker runs that could finalize another
        )
        manifest.load()
        if log.last_number == 0:
            raise CorruptionError(f"{self.keys.manifest_dir}: there is no manifest")
        manifest.seal()

        def rules_of(topic_id: bytes, partition: int) -> PlaceRules | None:
            topic = topics.by_id.get(topic_id)
            if topic is None or not 0 <= partition < topic.partitions:
                return None
            config = topic_config(topics, topic)
            # No broker runs; the next one reads from the manifest where the clean part ends.
            return PlaceRules(
                topic.name,
                config.compacted,
                config.file_delete_delay_ms,
                config.delete_retention_ms,
                lambda: False,
                lambda offset, gone: None,
            )

        judge = ProposalJudge(
            manifest,
            self.store,
            self.keys,
            self.clock,
            broker_epoch=owned.epoch,
            rules_of=rules_of,
            acquire=lambda count: None,
        )
        result = judge.judge(proposal)
        key = self.keys.full(proposal_key(proposal.id, RESULT))
        create_once(self.store, key, encode_result(result), retries, SMALL_BYTES_MAX)
        return result

    def _release(self, owned: Claim) -> None:
        try:
            owned.release(self.clock.now_ms())
        except Superseded:
            pass  # by a broker, which owns the cluster now
        except StoreError as error:
            self.say(f"the cluster could not be released: {error}; a broker of the last data directory may start")
