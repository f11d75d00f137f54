"""Files of Kafka client properties, good and bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli.client_properties import ClientProperties, read_properties
from kbroker.option_values import ConfigError


def read(folder: Path, text: str | bytes, bootstrap: str | None = None) -> ClientProperties:
    path = folder / "client.properties"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_properties(bootstrap, str(path))


def test_properties_are_read_as_java_reads_them(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "# a comment\n! another\n\nbootstrap.servers = a:1,\\\n   b:2\nclient.id:me\n"
        "request.timeout.ms 1500\ndefault.api.timeout.ms=2500\nsecurity.protocol=plaintext\n",
    )
    assert found == ClientProperties("a:1,b:2", "me", 1.5, 2.5)


def test_the_option_takes_precedence_over_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, "bootstrap.servers=a:1", "b:2").bootstrap == "b:2"


def test_a_comma_at_the_end_is_no_address() -> None:
    assert read_properties("a:1,[::1]:2,", None).bootstrap == "a:1,[::1]:2"


@pytest.mark.parametrize("given", ["", " "])
def test_an_empty_option_is_not_the_default(given: str) -> None:
    with pytest.raises(ConfigError, match="--bootstrap-server: no address"):
        read_properties(given, None)


def test_without_anything_the_local_broker_is_meant() -> None:
    assert read_properties(None, None) == ClientProperties("127.0.0.1:9092", "kbroker", 30.0, 60.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sasl.mechanism=PLAIN", "sasl.mechanism is not supported"),
        ("bootstrap.server=a:1", "did you mean bootstrap.servers"),
        ("security.protocol=SASL_SSL", "security.protocol=SASL_SSL is not supported"),
        ("request.timeout.ms=soon", r"client\.properties: request\.timeout\.ms: 'soon' is not a whole number"),
        ("request.timeout.ms=0", r"client\.properties: request\.timeout\.ms: 0 is not from 1"),
        ("bootstrap.servers=nowhere", r"client\.properties: bootstrap\.servers: 'nowhere' is not HOST:PORT"),
        ("bootstrap.servers=", "bootstrap.servers: no address"),
        ("bootstrap.servers=http://a:1", "'http://a:1' is not HOST:PORT"),
        ("=x", "line 1 is not NAME=VALUE"),
        (b"\xff\xfe\x00", "is not a text file"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_properties(None, str(tmp_path / "none"))
    with pytest.raises(ConfigError):
        read_properties(None, str(tmp_path))
