"""The process of ``kbroker serve``: signals, control commands, the main thread's loop, and the exit code."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from typing import Any

from kbroker._fast.base.heap import share_heaps
from kbroker.admin.control import SOCKET_NAME, ControlServer
from kbroker.app.broker import Broker
from kbroker.app.config import Settings
from kbroker.app.ready import first_commands, program_text, ready_text
from kbroker.app.signals import SignalThread
from kbroker.app.stop_deadline import end_process_anyway
from kbroker.app.stopping import EXIT_FAILED, Stopping
from kbroker.errors import StartError

logger = logging.getLogger("kbroker")

FLUSH_SECONDS = 600.0  # for the control command
SWITCH_INTERVAL_SECONDS = 0.0005  # how soon a thread that holds the GIL is asked for it: bounds an I/O thread's wait
CHECK_SECONDS = 0.5
TRIM_SECONDS = 10.0  # between two trims of the heap


def run(settings: Settings) -> int:
    """Runs a broker until SIGTERM, SIGINT or SIGHUP; returns the exit code. Raises StartError."""
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    share_heaps()
    broker = Broker(settings.config)
    signals = SignalThread()
    for number in (signal.SIGTERM, signal.SIGINT):
        signals.on(number, lambda: _begin_stop(broker))
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup's
        signals.on(signal.SIGHUP, lambda: _begin_stop(broker))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    broker.start()
    signals.on(signal.SIGUSR1, lambda: broker.flusher.flush(wait=False))
    try:
        control = ControlServer(
            broker.config.data_dir,
            {
                "flush": lambda request: _flush(broker),
                "proposals": lambda request: {"answered": broker.proposals.look()},
                "settings": lambda request: _settings(settings),
            },
        )
    except OSError as error:
        Stopping(broker).run()
        raise StartError(f"cannot take commands at {broker.config.data_dir / SOCKET_NAME}: {error.strerror}") from None
    if broker.http is not None:
        from kbroker.app.status import BrokerStatus  # loads the Prometheus client

        broker.http.start(BrokerStatus(broker))
    gc.freeze()  # what is loaded now lives as long as the process
    gc.enable()
    _print_ready(broker)
    wait(broker)
    control.close()
    code = Stopping(broker).run()
    if broker.http is not None:
        broker.http.stop()
    end_process_anyway(code)
    return code


def _print_ready(broker: Broker) -> None:
    config, cluster = broker.config, broker.cluster
    ready = ready_text(
        cluster.keys.cluster_id, cluster.claim.epoch, config.data_dir, config.object_store, broker.address
    )
    commands = first_commands(program_text(sys.argv, sys.executable), broker.address, os.environ)
    try:
        print(ready, "Two commands to try:", *(f"    {command}" for command in commands), sep="\n", flush=True)
    except OSError as error:  # a closed pipe, a full disk
        logger.warning("cannot write to the standard output: %s", error.strerror)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's exit would try again


def wait(broker: Broker) -> None:
    """Returns when the broker is to stop: a signal, a lost claim, a failed log."""
    trimmed_s = broker.clock.monotonic()
    while not broker.stopping.wait(CHECK_SECONDS):
        broker.data_dir.hold_start_room()
        broker.unflushed_age.look(broker.wal.durable_lsn, broker.flusher.flushed_lsn)
        if broker.clock.monotonic() - trimmed_s >= TRIM_SECONDS:
            trimmed_s = broker.clock.monotonic()
            broker.heap.trim()
        if broker.wal.failed:
            broker.fail(f"the write-ahead log failed twice (errno {broker.wal.last_errno}) and takes no more data")


def _begin_stop(broker: Broker) -> None:
    """For a signal: the first begins the stop, the next ends it at once (the log is kept, exit code 1)."""
    if broker.stopping.is_set():
        broker.deadline.end_now()
        return
    broker.deadline.begin()
    broker.stopping.set()
    if not broker.started.is_set():
        threading.Thread(target=_end_start, args=(broker,), name="kbroker-stop", daemon=True).start()


def _end_start(broker: Broker) -> None:
    if not broker.deadline.run(broker.started.wait):
        logger.error("told to stop during the start, and the store does not answer: the log is kept")
        logging.shutdown()
        os._exit(EXIT_FAILED)


def _flush(broker: Broker) -> dict[str, Any]:
    """The control command: returns when everything durable now is committed to the bucket."""
    before = broker.flusher.flushed_lsn
    if not broker.flusher.flush(wait=True, timeout=FLUSH_SECONDS):
        raise RuntimeError(f"the flush did not complete: {broker.flusher.metrics.last_error or 'timed out'}")
    after = broker.flusher.flushed_lsn
    return {"flushed_lsn": after, "flushed_bytes": broker.wal.bytes_between(before, after)}


def _settings(settings: Settings) -> dict[str, Any]:
    """The control command: what this process was started with."""
    from kbroker.app.settings_toml import settings_toml  # a start does not need it

    return {"settings_toml": settings_toml(settings)}
