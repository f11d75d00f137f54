"""What an operator types beside a real broker: doctor, support-bundle, completion, logs as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from conftest import SMALL, Store
from kafka import KafkaConsumer, KafkaProducer
from s3_server import SECRET_KEY, find_server, s3_server
from test_cli import free_port
from until import until

from kbroker.cli.logs import LIBRARIES
from kbroker.storage.stores.store_url import open_store

CANARY = "canary-of-a-record"
TOPIC = "greetings"


@pytest.fixture(scope="module")
def running(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that logs JSON and serves its status, with a topic and a group."""
    folder = tmp_path_factory.mktemp("operator")
    options = (*store.options, *SMALL, "--http-listen", f"127.0.0.1:{free_port()}", "--log-format", "json")
    process = BrokerProcess(folder / "data", *options, environ={**store.environ, "KBROKER_LISTN": "x"}).start()
    producer = KafkaProducer(bootstrap_servers=process.bootstrap)
    producer.send(TOPIC, CANARY.encode(), key=b"canary-of-a-key").get(30)
    producer.close()
    consumer = KafkaConsumer(
        TOPIC, bootstrap_servers=process.bootstrap, group_id="readers", auto_offset_reset="earliest"
    )
    next(consumer)
    consumer.commit()
    consumer.close()
    yield process
    process.kill()


def kbroker(
    *arguments: str, environ: dict[str, str] | None = None, stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """A command, as a user types it."""
    ran = subprocess.run(
        [sys.executable, "-m", "kbroker", *arguments], env={**os.environ, **(environ or {})}, stdout=stdout,
        stderr=subprocess.PIPE, text=True, timeout=120,
    )  # fmt: skip
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran


def settings(broker: BrokerProcess) -> tuple[str, ...]:
    """The options that the broker runs with."""
    return ("--data-dir", str(broker.data_dir), "--listen", broker.bootstrap, *broker.options)


def keys(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Everything in the broker's store."""
    for name, value in broker.environ.items():
        monkeypatch.setenv(name, value)
    options = dict(zip(broker.options[::2], broker.options[1::2], strict=True))
    opened = open_store(options["--object-store"], options.get("--s3-endpoint"))
    uploads = {upload.key for upload in opened.list_multipart("")}
    found = {meta.key for meta in opened.list("")} | uploads
    opened.close()
    return found


def of_probe(found: set[str]) -> set[str]:
    return {key for key in found if "probe" in key or "doctor" in key}


def test_doctor_passes_beside_its_broker_and_leaves_nothing(
    running: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(os.listdir(running.data_dir))
    ran = kbroker("doctor", *settings(running), "--json", environ=running.environ)
    found = {each["check"]: each for each in map(json.loads, ran.stdout.splitlines())}
    assert ran.returncode == 0, ran.stdout
    for check in ("listen", "http-listen"):
        assert f"(pid {running.pid})" in found[check]["message"]
    assert f"(pid {running.pid})" in found["data-dir"]["message"]
    assert "is in use by the broker that runs here" in found["cluster"]["message"]
    assert {"store-if-none-match", "store-if-match", "store-multipart", "store-latency", "clock"} <= found.keys()
    assert of_probe(keys(running, monkeypatch)) == set()
    assert set(os.listdir(running.data_dir)) == before
    assert running.process is not None
    assert running.process.poll() is None


def test_doctor_of_another_data_directory_names_the_broker_that_has_the_port(
    running: BrokerProcess, tmp_path: Path
) -> None:
    options = ("--data-dir", str(tmp_path / "data"), "--listen", running.bootstrap, *running.options)
    ran = kbroker("doctor", *options, environ=running.environ)
    assert ran.returncode == 1
    failed = {line.split()[1]: line for line in ran.stdout.splitlines() if line.startswith("failed")}
    assert failed.keys() == {"listen", "http-listen", "cluster"}
    assert f"(pid {running.pid})" in failed["listen"]
    assert "--take-over" in failed["cluster"]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_bundle_has_the_state_and_no_record(running: BrokerProcess, tmp_path: Path, is_running: bool) -> None:
    path, log = tmp_path / "bundle.tar.gz", running.log_path
    if not is_running:
        running.kill()
    try:
        ran = kbroker(
            "support-bundle", *settings(running), "--flush-seconds", "7", "-o", str(path), "--log-file", str(log),
            environ=running.environ,
        )  # fmt: skip
    finally:
        if not is_running:
            running.start()
    assert ran.returncode == 0, ran.stderr
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    found = {each.name: each.read_text() for each in (tmp_path / "bundle").iterdir()}
    for text in found.values():
        assert CANARY not in text
        assert "canary-of-a-key" not in text
        assert SECRET_KEY not in text
    assert "kbroker-" in found["objects.txt"]
    assert "cluster_id" in json.loads(found["manifest.json"])
    assert "identity.json" in found["data-dir.txt"]
    assert "recovered the write-ahead log" in found["broker.log"]
    if is_running:
        assert found["errors.txt"] == ""
        assert tomllib.loads(found["settings.toml"])["flush-seconds"] == 7
        assert tomllib.loads(found["running-settings.toml"])["flush-seconds"] != 7
        assert SMALL[0].lstrip("-") in found["running-settings.toml"]
        assert "kbroker_" in found["metrics.txt"]
        assert json.loads(found["readiness.json"])["ready"] is True
    else:
        assert f"{TOPIC}\t0\t0\t1\t1\t" in found["log.txt"]
        assert "no broker answers at" in found["errors.txt"]


def test_a_port_that_is_taken_leads_to_the_doctor(running: BrokerProcess, tmp_path: Path) -> None:
    ran = kbroker("serve", "--data-dir", str(tmp_path / "data"), "--listen", running.bootstrap, *SMALL)
    assert ran.returncode == 1
    assert ran.stderr.endswith("Address already in use; `kbroker doctor` says which process has it\n")


def test_a_flush_says_how_much(running: BrokerProcess) -> None:
    producer = KafkaProducer(bootstrap_servers=running.bootstrap)
    producer.send("flushed", b"x").get(30)
    producer.close()
    assert "of the log" in kbroker("flush", "--data-dir", str(running.data_dir)).stdout


def test_topics_and_groups_of_the_broker_are_completed(running: BrokerProcess) -> None:
    def offered(*words: str) -> list[str]:
        line = ("kbroker", *words[:2], "--bootstrap", running.bootstrap, *words[2:])
        environ = {"_KBROKER_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1)}
        ran = subprocess.run(
            [str(Path(sys.executable).with_name("kbroker"))], env={**os.environ, **environ}, capture_output=True,
            text=True, timeout=60, check=True,
        )  # fmt: skip
        return ran.stdout.split()

    # The broker has half a second for an answer, and a loaded machine may need more.
    until(lambda: offered("topic", "describe", TOPIC[0]) == [f"plain,{TOPIC}"], "topic is offered")
    until(lambda: offered("group", "describe", "r") == ["plain,readers"], "group is offered")
    assert offered("topic", "describe", "x") == []


def test_each_line_of_a_json_log_is_an_event(running: BrokerProcess) -> None:
    events = [json.loads(line) for line in running.log().splitlines()]
    assert all({"time", "level", "logger", "message"} <= event.keys() for event in events)
    assert any(
        event["level"] == "WARNING" and "KBROKER_LISTN is set, and nothing reads it" in event["message"]
        for event in events
    )


def test_a_closed_output_is_no_traceback(running: BrokerProcess) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for command in (("doctor", *settings(running)), ("serve", "--print-config"), ("completion", "bash")):
        ran = kbroker(*command, environ=running.environ, stdout=writing)
        assert ran.returncode == 1, command
    os.close(writing)


def test_an_ascii_terminal_gets_every_message(running: BrokerProcess, tmp_path: Path) -> None:
    environ = {**running.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran = kbroker("doctor", "--data-dir", str(tmp_path / "größe"), "--listen", "127.0.0.1:0", environ=environ)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "gr\\" in ran.stdout


@pytest.mark.s3
def test_an_outage_of_the_store_is_told_by_the_broker_alone(tmp_path: Path) -> None:
    if find_server() is None:
        pytest.skip("no S3 server")
    with s3_server(tmp_path) as server:
        options = ("--object-store", "s3://kbroker-test/outage", "--s3-endpoint", server.endpoint)
        broker = BrokerProcess(tmp_path / "data", *options, *SMALL, environ=server.environment()).start()
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        producer.send("t", b"x").get(30)
    try:
        producer.send("t", b"y").get(30)
        producer.close()
        ran = kbroker("flush", "--data-dir", str(broker.data_dir), "--timeout", "2")
        assert ran.returncode == 1
        until(lambda: "WARNING" in broker.log() or "ERROR" in broker.log(), "line about the outage")
        ran = kbroker("doctor", "--data-dir", str(broker.data_dir), "--listen", broker.bootstrap, *options, *SMALL,
                      environ=server.environment())  # fmt: skip
        assert ran.returncode == 1
        failed = [line for line in ran.stdout.splitlines() if line.startswith("failed")]
        assert len(failed) == 1
        assert "store-put" in failed[0]
        assert "check endpoint, network and disk" in failed[0]
        for text in (broker.log(), ran.stderr):
            assert not any(f" {name}" in text for name in LIBRARIES), text
    finally:
        broker.kill()


@pytest.mark.s3
@pytest.mark.parametrize(
    ("environ", "url", "check", "part"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "s3://kbroker-test/x", "store-put", "check the credentials"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "s3://kbroker-test/x", "store-put", "check the credentials"),
        ({}, "s3://no-such-bucket/x", "store-put", "bucket no-such-bucket does not exist; create it"),
    ],
)
def test_doctor_says_what_is_wrong_with_a_bucket(
    request: pytest.FixtureRequest, tmp_path: Path, environ: dict[str, str], url: str, check: str, part: str
) -> None:
    server = request.getfixturevalue("s3")
    options = ("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--s3-endpoint", server.endpoint)
    ran = kbroker("doctor", *options, "--object-store", url, environ={**server.environment(), **environ})
    assert ran.returncode == 1
    failed = [line for line in ran.stdout.splitlines() if line.startswith("failed")]
    assert failed[0].split()[1] == check
    assert part in failed[0]
    assert len(failed) == 1 or "credentials" in part
    assert not (tmp_path / "data").exists()
