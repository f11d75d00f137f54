"""franz-go, sarama and kafkajs produce and consume: every codec and acks, large messages, broker restarts."""

from __future__ import annotations

import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER
from program_driver import EVERY_CLIENT, FRANZ_GO, KAFKAJS, SARAMA, SARAMA_BY_DEFAULT, ProgramDriver, case, to_send
from scenarios import IDEMPOTENT, new_topic
from until import until
from workload import CODECS, Sent, generated, in_turn, spread

MESSAGES = 1500  # of the producer whose broker is killed


@pytest.mark.feature("produce and consume")
@EVERY_CLIENT
@ON_A_FOLDER
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_and_acks_is_read_back(broker: BrokerProcess, driver: ProgramDriver, codec: str) -> None:
    scenarios.every_mode(broker, driver, codec)


@pytest.mark.feature("produce and consume")
@pytest.mark.s3
@pytest.mark.parametrize("store", ["s3"], indirect=True)
@pytest.mark.parametrize(
    ("driver", "codec"), [case(FRANZ_GO, "lz4"), case(SARAMA, "zstd"), case(KAFKAJS, "snappy")], indirect=["driver"]
)
def test_one_codec_is_read_back_from_a_bucket(broker: BrokerProcess, driver: ProgramDriver, codec: str) -> None:
    """One for each client is enough: the broker stores batches as they come."""
    scenarios.every_mode(broker, driver, codec)


@pytest.mark.feature("produce and consume")
@pytest.mark.parametrize("driver", [case(SARAMA_BY_DEFAULT)], indirect=True)
@ON_A_FOLDER
def test_the_versions_that_sarama_assumes_by_default_work(broker: BrokerProcess, driver: ProgramDriver) -> None:
    scenarios.every_mode(broker, driver, "snappy")


@pytest.mark.feature("produce and consume")
@EVERY_CLIENT
@ON_A_FOLDER
def test_large_messages_are_read_back(broker: BrokerProcess, driver: ProgramDriver) -> None:
    scenarios.large_messages(broker, driver, driver.large_codec)


@pytest.mark.feature("produce and consume")
@EVERY_CLIENT
@ON_A_FOLDER
def test_keyed_text_keeps_its_order(broker: BrokerProcess, driver: ProgramDriver) -> None:
    scenarios.real_text(broker, driver, "snappy", 5_000)


@pytest.mark.feature("restarts")
@pytest.mark.parametrize(
    ("driver", "store"),
    [case(FRANZ_GO, "folder"), case(SARAMA, "folder"), case(SARAMA, "s3"), case(KAFKAJS, "folder")],
    indirect=True,
)
def test_restarts_keep_everything(broker: BrokerProcess, driver: ProgramDriver) -> None:
    scenarios.restarts(broker, driver)


@pytest.mark.feature("idempotence")
@EVERY_CLIENT
@ON_A_FOLDER
def test_an_idempotent_producer_survives_kills_of_the_broker(broker: BrokerProcess, driver: ProgramDriver) -> None:
    """One producer whose broker is killed while it sends: nothing lost, duplicated or out of order."""
    topic = new_topic(broker, driver, "through-kill")
    sent: Sent = spread(generated(MESSAGES, 9, driver.shape), driver.partitions)
    messages = list(in_turn(sent))
    third = MESSAGES // 3
    with driver.start(broker.bootstrap) as program:
        for first in range(0, MESSAGES, third):
            program.post("send", keep=True, **to_send(topic, messages[first : first + third], mode=IDEMPOTENT))
            if first:
                until(lambda first=first: written(broker, topic, driver) > first, "first batch")
                broker.kill()
                broker.start()
            program.answer()
    scenarios.assert_all_read(broker, driver, topic, sent, subscribe=False)


def written(broker: BrokerProcess, topic: str, driver: ProgramDriver) -> int:
    """How many messages the topic has."""
    return sum(scenarios.end_offsets(broker, topic, driver.partitions))
