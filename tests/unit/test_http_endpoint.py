"""Status endpoint: probes, metrics, refusals, and clients that hold on."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator

import pytest

from kbroker.errors import StartError
from kbroker.http_endpoint import CONNECTIONS_MAX, HttpEndpoint


class State:
    alive = True
    ready = True
    body = b"kbroker_flushes_total 3\n"

    def readiness(self) -> tuple[bool, dict[str, object]]:
        return self.ready, {"ready": self.ready}

    def metrics(self) -> bytes:
        if self.body is None:
            raise RuntimeError("no metrics")
        return self.body


@contextlib.contextmanager
def endpoint(state: State, host: str = "127.0.0.1") -> Iterator[HttpEndpoint]:
    made = HttpEndpoint((host, 0), lambda: state.alive, state.readiness, state.metrics)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def ask(server: HttpEndpoint, path: str, method: str = "GET") -> tuple[int, bytes, str | None]:
    connection = http.client.HTTPConnection(server.server_name, server.server_port, timeout=20)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer.getheader("Content-Type")


def test_probes_follow_the_state() -> None:
    state = State()
    with endpoint(state) as server:
        assert ask(server, "/livez")[:2] == (200, b"ok\n")
        assert ask(server, "/readyz?verbose")[:2] == (200, b'{"ready": true}\n')
        state.ready = False
        assert ask(server, "/readyz")[:2] == (503, b'{"ready": false}\n')
        assert ask(server, "/livez")[0] == 200
        state.alive = False
        assert ask(server, "/livez")[:2] == (503, b"failed\n")


def test_metrics() -> None:
    with endpoint(State()) as server:
        assert ask(server, "/metrics") == (200, State.body, "text/plain; version=0.0.4; charset=utf-8")
        assert ask(server, "/metrics", "HEAD")[:2] == (200, b"")


def test_metrics_that_fail_are_an_error_and_not_the_end(caplog) -> None:
    state = State()
    state.body = None
    with endpoint(state) as server:
        assert ask(server, "/metrics")[0] == 500
        assert ask(server, "/livez")[0] == 200
    assert "no metrics" in caplog.text


def test_other_paths_and_methods() -> None:
    with endpoint(State()) as server:
        assert ask(server, "/")[0] == 404
        assert ask(server, "/metrics/x")[0] == 404
        assert ask(server, "/livez", "POST")[0] == 501


def test_several_requests_on_one_connection() -> None:
    with endpoint(State()) as server:
        connection = http.client.HTTPConnection(server.server_name, server.server_port, timeout=20)
        for _ in range(3):
            connection.request("GET", "/livez")
            assert connection.getresponse().read() == b"ok\n"
        connection.close()


def test_more_connections_than_threads_are_closed() -> None:
    with endpoint(State()) as server, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", server.server_port)
        for _ in range(CONNECTIONS_MAX):
            held = stack.enter_context(socket.create_connection(address, 20))
            held.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            assert held.recv(100).startswith(b"HTTP/1.1 200")
        refused = stack.enter_context(socket.create_connection(address, 20))
        assert refused.recv(100) == b""


def test_an_address_in_use_stops_the_start() -> None:
    with endpoint(State()) as server:
        with pytest.raises(StartError, match=rf"cannot listen on 127.0.0.1:{server.server_port} \(--http-listen\)"):
            HttpEndpoint(("127.0.0.1", server.server_port), bool, State().readiness, bytes)
        with pytest.raises(StartError, match=r"cannot listen on no\.such\.host\.invalid:0"):
            HttpEndpoint(("no.such.host.invalid", 0), bool, State().readiness, bytes)


def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        with endpoint(State(), "::1") as server:
            assert ask(server, "/livez")[0] == 200
    except StartError:
        pytest.skip("no IPv6 here")
