"""Kafka client properties, as ``--command-config FILE`` has them."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.client.connection import parse_bootstrap
from kbroker.limits import MIB
from kbroker.option_values import ConfigError, nearest, parse_int
from kbroker.storage.stores.regular_file import read_text
from kbroker.types import address_text

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
FILE_BYTES_MAX = 1 * MIB
TIMEOUT_MS_MAX = 2**31 - 1

SUPPORTED = (
    "bootstrap.servers", "client.id", "request.timeout.ms", "default.api.timeout.ms", "delivery.timeout.ms",
    "security.protocol",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """Settings of a client, named as in Kafka."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    client_id: str = "kbroker"
    request_timeout_s: float = 30.0
    api_timeout_s: float = 60.0
    delivery_timeout_s: float = 120.0


def read_properties(bootstrap: str | None, path: str | None) -> ClientProperties:
    """The properties of a file, where there is one; `bootstrap` takes precedence. Raises ConfigError."""
    values = {} if path is None else _read(path)
    for name in values:
        if name not in SUPPORTED:
            near = nearest(name, SUPPORTED)
            raise ConfigError(
                f"{path}: {name} is not supported" + (f"; did you mean {near}?" if near else " by this version")
            )
    protocol = values.get("security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise ConfigError(f"{path}: security.protocol={protocol} is not supported by this version: only PLAINTEXT")
    default = ClientProperties()
    where = f"{path}: bootstrap.servers" if bootstrap is None else "--bootstrap-server"
    given = values.get("bootstrap.servers", default.bootstrap) if bootstrap is None else bootstrap
    try:
        addresses = parse_bootstrap(given)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    return ClientProperties(
        bootstrap=",".join(address_text(*address) for address in addresses),
        client_id=values.get("client.id", default.client_id),
        request_timeout_s=_seconds(path, values, "request.timeout.ms", default.request_timeout_s),
        api_timeout_s=_seconds(path, values, "default.api.timeout.ms", default.api_timeout_s),
        delivery_timeout_s=_seconds(path, values, "delivery.timeout.ms", default.delivery_timeout_s),
    )


def _seconds(path: str | None, values: dict[str, str], name: str, default: float) -> float:
    if name not in values:
        return default
    try:
        milliseconds = parse_int(values[name])
    except ConfigError as error:
        raise ConfigError(f"{path}: {name}: {error}") from None
    if not 0 < milliseconds <= TIMEOUT_MS_MAX:
        raise ConfigError(f"{path}: {name}: {milliseconds} is not from 1 to {TIMEOUT_MS_MAX}")
    return milliseconds / 1000


def _read(path: str) -> dict[str, str]:
    """NAME=VALUE, NAME:VALUE or NAME VALUE a line; # and ! begin comments, \\ continues a line (as in Java)."""
    values: dict[str, str] = {}
    line = ""
    for number, raw in enumerate(read_text(path, FILE_BYTES_MAX).splitlines(), 1):
        line += raw.strip() if line else raw.lstrip()
        if line.endswith("\\") and not line.startswith(("#", "!")):
            line = line[:-1]
            continue
        if line and not line.startswith(("#", "!")):
            name, value = _split(line)
            if not name:
                raise ConfigError(f"{path}: line {number} is not NAME=VALUE")
            values[name] = value
        line = ""
    return values


def _split(line: str) -> tuple[str, str]:
    ends = [position for position in (line.find(char) for char in "=:") if position >= 0]
    if not ends:
        name, _, value = line.partition(" ")
        return name.strip(), value.strip()
    return line[: min(ends)].strip(), line[min(ends) + 1 :].strip()
