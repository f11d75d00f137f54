"""sarama: every codec and acknowledgement, restarts, groups, transactions, administration, at two of its versions."""

from __future__ import annotations

from collections.abc import Iterator

import program_scenarios
import pytest
import scenarios
from broker_process import BrokerProcess
from client_program import TOOLS, ProgramClient
from conftest import ON_A_FOLDER, require
from workload import CODECS

pytestmark = pytest.mark.feature("sarama")
CLIENT = ProgramClient("sarama", lambda bootstrap: [str(TOOLS / "bin/sarama"), bootstrap, "max"])
# Takes the broker for the version that it takes any broker for unless told: other versions of most requests.
BY_DEFAULT = ProgramClient("sarama-default", lambda bootstrap: [str(TOOLS / "bin/sarama"), bootstrap, "default"])


@pytest.fixture(scope="module", autouse=True)
def program() -> Iterator[None]:
    require(not CLIENT.missing(), "no sarama program: run scripts/fetch_tools.sh")
    yield
    CLIENT.close()
    BY_DEFAULT.close()


@pytest.mark.feature("produce and consume")
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_and_acks(broker: BrokerProcess, codec: str) -> None:
    scenarios.every_mode(broker, CLIENT, codec)


@pytest.mark.feature("produce and consume")
@ON_A_FOLDER
def test_large_messages(broker: BrokerProcess) -> None:
    scenarios.large_messages(broker, CLIENT, "zstd")


@pytest.mark.feature("produce and consume")
@ON_A_FOLDER
def test_real_text(broker: BrokerProcess) -> None:
    scenarios.real_text(broker, CLIENT, "snappy", 5_000)


@pytest.mark.feature("restarts")
def test_restarts_keep_everything(broker: BrokerProcess) -> None:
    scenarios.restarts(broker, CLIENT)


@pytest.mark.feature("idempotence")
@ON_A_FOLDER
def test_idempotent_producer_lives_through_kill_9(broker: BrokerProcess) -> None:
    program_scenarios.idempotent_through_kill_9(broker, CLIENT)


@pytest.mark.feature("groups")
@ON_A_FOLDER
@pytest.mark.parametrize("assignor", ["range", "sticky"])
def test_members_share_and_take_over(broker: BrokerProcess, assignor: str) -> None:
    program_scenarios.members_share_and_take_over(broker, CLIENT, assignor)


@pytest.mark.feature("produce and consume", "groups")
@ON_A_FOLDER
def test_default_version(broker: BrokerProcess) -> None:
    scenarios.every_mode(broker, BY_DEFAULT, "snappy")
    program_scenarios.commit_and_resume(broker, BY_DEFAULT)


@pytest.mark.feature("groups")
@ON_A_FOLDER
def test_commit_and_resume(broker: BrokerProcess) -> None:
    program_scenarios.commit_and_resume(broker, CLIENT)


@pytest.mark.feature("transactions")
def test_commit_and_abort(broker: BrokerProcess) -> None:
    program_scenarios.commit_and_abort(broker, CLIENT)


@pytest.mark.feature("transactions")
@ON_A_FOLDER
def test_offsets_in_transactions(broker: BrokerProcess) -> None:
    program_scenarios.offsets_in_transactions(broker, CLIENT)


@pytest.mark.feature("admin")
@ON_A_FOLDER
def test_topics_and_records(broker: BrokerProcess) -> None:
    program_scenarios.topics_and_records(broker, CLIENT)


@pytest.mark.feature("admin")
@ON_A_FOLDER
def test_groups_are_administered(broker: BrokerProcess) -> None:
    program_scenarios.groups_are_administered(broker, CLIENT)
