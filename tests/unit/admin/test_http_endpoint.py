"""Status endpoint: probes, metrics, refusals, and clients that hold on."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kbroker.admin.http_endpoint import HttpEndpoint
from kbroker.clock import SystemClock
from kbroker.errors import StartError


class State:
    alive = True
    ready = True
    body: bytes | None = b"kbroker_flushes_total 3\n"

    def is_alive(self) -> bool:
        return self.alive

    def readiness(self) -> tuple[bool, dict[str, object]]:
        return self.ready, {"ready": self.ready}

    def metrics(self, openmetrics: bool) -> bytes:
        if self.body is None:
            raise RuntimeError("no metrics")
        return self.body + b"# EOF\n" if openmetrics else self.body


@contextlib.contextmanager
def endpoint(state: State, host: str = "127.0.0.1") -> Iterator[HttpEndpoint]:
    made = HttpEndpoint((host, 0), SystemClock())
    made.start(state)
    try:
        yield made
    finally:
        made.stop()


def ask(server: HttpEndpoint, path: str, method: str = "GET", accept: str = "*/*") -> tuple[int, bytes, str | None]:
    connection = http.client.HTTPConnection(*server.address, timeout=20)
    connection.request(method, path, headers={"Accept": accept})
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


def test_metrics_are_served_as_prometheus_text() -> None:
    with endpoint(State()) as server:
        assert ask(server, "/metrics") == (200, State.body, "text/plain; version=0.0.4; charset=utf-8")
        assert ask(server, "/metrics", "HEAD")[:2] == (200, b"")


PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize("accept", ["application/openmetrics-text", PROMETHEUS])
def test_metrics_are_served_as_openmetrics_on_request(accept: str) -> None:
    with endpoint(State()) as server:
        _, text, content_type = ask(server, "/metrics", accept=accept)
        assert text.endswith(b"# EOF\n")
        assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.mark.parametrize("accept", ["", "text/plain", "application/openmetrics-text;q=0", "a/b;c=openmetrics-text"])
def test_other_clients_get_prometheus_text(accept: str) -> None:
    with endpoint(State()) as server:
        assert ask(server, "/metrics", accept=accept)[1] == State.body


def test_metrics_that_fail_are_an_error_and_the_server_goes_on(caplog) -> None:
    state = State()
    state.body = None
    with endpoint(state) as server:
        assert ask(server, "/metrics")[0] == 500
        assert ask(server, "/livez")[0] == 200
    assert "no metrics" in caplog.text


def test_other_paths_and_methods_are_refused() -> None:
    with endpoint(State()) as server:
        assert ask(server, "/")[0] == 404
        assert ask(server, "/metrics/x")[0] == 404
        assert ask(server, "/livez", "POST")[0] == 501


def test_several_requests_of_one_client_are_answered() -> None:
    with endpoint(State()) as server:
        connection = http.client.HTTPConnection(*server.address, timeout=20)
        for _ in range(3):
            connection.request("GET", "/livez")
            assert connection.getresponse().read() == b"ok\n"
        connection.close()


def test_slow_metrics_delay_no_probe() -> None:
    gathering, go_on, gathered = threading.Event(), threading.Event(), []

    def metrics(openmetrics: bool) -> bytes:
        gathered.append(len(gathered))
        gathering.set()
        assert go_on.wait(20)
        return b"x %d\n" % len(gathered)

    state = State()
    state.metrics = metrics  # type: ignore[method-assign]
    with endpoint(state) as server, ThreadPoolExecutor(8) as threads:
        first = threads.submit(ask, server, "/metrics")
        assert gathering.wait(20)
        later = [server.answer("/metrics", "") for _ in range(5)]
        assert ask(server, "/livez")[:2] == (200, b"ok\n")
        go_on.set()
        assert first.result(20)[1] == b"x 1\n"
        assert {each.result(20).body for each in later} == {b"x 2\n"}  # gathered once for all of them
    assert len(gathered) == 2


def test_an_address_in_use_stops_the_start() -> None:
    with endpoint(State()) as server:
        with pytest.raises(StartError, match=rf"cannot listen on 127.0.0.1:{server.address[1]} \(--http-listen\)"):
            HttpEndpoint(("127.0.0.1", server.address[1]), SystemClock())
        with pytest.raises(StartError, match=r"cannot listen on no\.such\.host\.invalid:0"):
            HttpEndpoint(("no.such.host.invalid", 0), SystemClock())


def test_it_listens_on_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        with endpoint(State(), "::1") as server:
            assert ask(server, "/livez")[0] == 200
    except StartError:
        pytest.skip("no IPv6 here")
