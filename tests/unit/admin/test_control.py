"""Control socket: commands, errors, deep paths, and an end that leaves nothing behind."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.admin.control import SOCKET_NAME, ControlServer, send_command
from kbroker.cli.main import cli


def echo(request):
    return {"got": request}


def failing(request):
    raise RuntimeError("the flush did not complete: away")


def serve(path: Path, **commands) -> ControlServer:
    path.mkdir(parents=True, exist_ok=True)
    return ControlServer(path, commands)


def test_a_command_gets_its_arguments(tmp_path) -> None:
    server = serve(tmp_path, flush=echo)
    assert send_command(tmp_path, "flush", 20, wait=True) == {"got": {"command": "flush", "wait": True}}
    assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600
    server.close()


def test_errors_reach_the_caller(tmp_path) -> None:
    server = serve(tmp_path, flush=failing)
    with pytest.raises(RuntimeError, match="the flush did not complete: away"):
        send_command(tmp_path, "flush", 20)
    with pytest.raises(RuntimeError, match="unknown command 'stop'"):
        send_command(tmp_path, "stop", 20)
    server.close()


def test_an_answer_may_be_longer_than_a_request(tmp_path) -> None:
    server = serve(tmp_path, settings=lambda request: {"settings_toml": "x" * 1_000_000})
    assert len(send_command(tmp_path, "settings", 20)["settings_toml"]) == 1_000_000
    server.close()


def test_a_path_longer_than_a_socket_address_works(tmp_path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    server = serve(deep, flush=echo)
    assert send_command(deep, "flush", 20)
    server.close()


def test_a_command_without_a_broker_fails(tmp_path) -> None:
    with pytest.raises(OSError, match=r"No such file|refused"):
        send_command(tmp_path, "flush", 20)
    with pytest.raises(FileNotFoundError):
        send_command(tmp_path / "none", "flush", 20)


def test_a_socket_left_by_a_killed_broker_is_replaced(tmp_path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / SOCKET_NAME))
    stale.close()
    with pytest.raises(ConnectionRefusedError):
        send_command(tmp_path, "flush", 20)
    server = serve(tmp_path, flush=echo)
    assert send_command(tmp_path, "flush", 20)
    server.close()


def test_close_ends_the_thread_and_removes_the_socket(tmp_path) -> None:
    before = set(threading.enumerate())
    server = serve(tmp_path, flush=echo)
    (thread,) = [made for made in threading.enumerate() if made not in before]
    server.close()
    thread.join(20)
    assert not thread.is_alive()
    assert os.listdir(tmp_path) == []


def test_garbage_is_answered_with_an_error_and_the_next_command_is_served(tmp_path) -> None:
    server = serve(tmp_path, flush=echo)
    for line in (b"no json\n", b"[]\n", b"{}\n", b"x" * 100_000 + b"\n"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(str(tmp_path / SOCKET_NAME))
            connection.sendall(line)
            assert b'"error"' in connection.recv(4096)
    assert send_command(tmp_path, "flush", 20)
    server.close()


def test_a_broker_that_dies_before_it_answers_fails_the_command(tmp_path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / SOCKET_NAME))
        listening.listen()

        def hang_up() -> None:
            connection = listening.accept()[0]
            connection.recv(4096)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(RuntimeError, match="closed the connection before it answered"):
            send_command(tmp_path, "flush", 20)
        thread.join()


def test_two_commands_run_at_once(tmp_path) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(request):
        entered.set()
        assert go_on.wait(20)
        return {}

    server = serve(tmp_path, slow=slow, flush=echo)
    thread = threading.Thread(target=send_command, args=(tmp_path, "slow", 20))
    thread.start()
    assert entered.wait(20)
    assert send_command(tmp_path, "flush", 20)
    go_on.set()
    thread.join()
    server.close()


def test_kbroker_flush_reports_what_the_broker_answers(tmp_path) -> None:
    flush = ["flush", "--data-dir", str(tmp_path)]
    result = CliRunner().invoke(cli, flush)
    assert (result.exit_code, result.output) == (1, f"kbroker: no broker runs in {tmp_path}\n")
    asked: list[dict] = []
    sizes = [0, 1536]
    server = serve(tmp_path, flush=lambda request: asked.append(request) or {"flushed_bytes": sizes.pop()})
    for text in ("flushed 1.5 KiB of the log\n", "nothing was unflushed\n"):
        result = CliRunner().invoke(cli, flush)
        assert (result.exit_code, result.output) == (0, text)
    assert asked == [{"command": "flush"}] * 2
    server.close()
    server = serve(tmp_path, flush=failing)
    result = CliRunner().invoke(cli, flush)
    assert (result.exit_code, result.output) == (1, "kbroker: the flush did not complete: away\n")
    server.close()


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "1e30"])
def test_kbroker_flush_refuses_a_bad_timeout(tmp_path, seconds) -> None:
    result = CliRunner().invoke(cli, ["flush", "--data-dir", str(tmp_path), "--timeout", seconds])
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2
    assert "--timeout" in result.output.splitlines()[-1]


def test_kbroker_flush_gives_up_in_time(tmp_path) -> None:
    go_on = threading.Event()
    server = serve(tmp_path, flush=lambda request: go_on.wait(20) and {})
    result = CliRunner().invoke(cli, ["flush", "--data-dir", str(tmp_path), "--timeout", "0.05"])
    assert (result.exit_code, result.output) == (1, "kbroker: not done within 0.05 seconds; it continues\n")
    go_on.set()
    server.close()
