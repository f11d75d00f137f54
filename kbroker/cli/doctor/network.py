"""Checks of ``kbroker doctor``: ports and the address that clients are told."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from kbroker.app.config import EVERY_ADDRESS, BrokerConfig
from kbroker.app.data_dir import running_pid
from kbroker.cli.doctor.finding import Finding, failed, ok, warning
from kbroker.types import address_text
from kbroker.wire.server import bind

LISTENING = "0A"  # the state in /proc/net/tcp
PROC = Path("/proc")


def check_network(config: BrokerConfig) -> Iterator[Finding]:
    """The listeners' ports, then the advertised address."""
    own_pid = running_pid(config.data_dir)
    yield _port("listen", "--listen", config.listen, own_pid)
    if config.http_listen is not None:
        yield _port("http-listen", "--http-listen", config.http_listen, own_pid)
    yield _advertised(config)


def _port(check: str, option: str, address: tuple[str, int], own_pid: int | None) -> Finding:
    where = address_text(*address)
    try:
        bind(*address).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _taken(check, option, address, own_pid)
        if error.errno == errno.EACCES:
            return failed(check, f"{where}: this user may not listen there", f"use a port above 1023 in {option}")
        if error.errno == errno.EADDRNOTAVAIL:
            return failed(check, f"{where} is no address of this machine", f"name one of its addresses in {option}")
        return failed(check, f"cannot listen on {where}: {error.strerror or error}", f"change {option}")
    except UnicodeError:  # no host can have that name
        return failed(check, f"{where} is not the name of a host", f"change {option}")
    return ok(check, f"{where} is free" if address[1] else f"{where}: the start picks a free port")


def _taken(check: str, option: str, address: tuple[str, int], own_pid: int | None) -> Finding:
    where, pid = address_text(*address), listening_pid(address[1])
    if pid is None:
        return failed(
            check, f"{where} is taken by a process of another user", f"end it, or use another port in {option}"
        )
    if pid == own_pid:
        return ok(check, f"{where} is served by the broker of this data directory (pid {pid})")
    return failed(check, f"{where} is taken by {_name_of(pid)} (pid {pid})", f"end it, or use another port in {option}")


def listening_pid(port: int) -> int | None:
    """The process that listens on a TCP port; None if it cannot be seen, as another user's."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if wanted:
        for folder in PROC.glob("[0-9]*/fd"):
            with contextlib.suppress(OSError):  # another user's, or gone meanwhile
                for descriptor in os.scandir(folder):
                    with contextlib.suppress(OSError):
                        if os.readlink(descriptor.path) in wanted:
                            return int(folder.parent.name)
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    return "a process"


def _advertised(config: BrokerConfig) -> Finding:
    host, port = config.advertise or config.listen
    known_port = port or config.listen[1]
    where = address_text(host, known_port) if known_port else f"{host} and the port that the start picks"
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        return failed("advertise", f"clients are told {where}, and {host} has no address here: {reason}",
                      "name a host in --advertise that clients can look up")  # fmt: skip
    loopback = all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found)
    if loopback and config.listen[0] in EVERY_ADDRESS:
        return warning("advertise", f"clients are told {where}, which is their own machine",
                       "name an address in --advertise that other machines can connect to")  # fmt: skip
    if loopback:
        return ok("advertise", f"clients are told {where}: only those on this machine can connect")
    if ipaddress.ip_address(_ip_of(config.listen[0])).is_loopback:
        return warning("advertise", f"clients are told {where}, but the broker listens on {config.listen[0]} only",
                       "listen on an address that other machines reach, unless something forwards to it")  # fmt: skip
    if not any(map(_is_own, found)):
        return ok(
            "advertise", f"clients are told {where}, an address that is not this machine's: is it forwarded here?"
        )
    return ok("advertise", f"clients are told {where}")


def _ip_of(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None)[0][4][0]).partition("%")[0]
    except (OSError, UnicodeError):
        return "0.0.0.0"  # the check of the port says what is wrong


def _is_own(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address.partition("%")[0], 0))
        except OSError:
            return False
    return True
