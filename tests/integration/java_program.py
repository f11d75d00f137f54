"""A Java program of ours that runs beside a test: it writes and reads lines of tab-separated fields."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from java_tools import JVM

DEADLINE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Event:
    """One line: what happened, when (CLOCK_MONOTONIC of this machine, nanoseconds), and its fields."""

    name: str
    at_ns: int
    fields: tuple[str, ...]


class JavaProgram:
    """A running program; its events so far are in `events`. Leaving the `with` block kills it."""

    def __init__(
        self, class_path: str, main: str, *arguments: str, log_path: Path, heap: str = "192m", jvm: tuple[str, ...] = ()
    ) -> None:
        self.events: list[Event] = []
        self.log_path = log_path
        self.killed_ns: int | None = None
        self._more = threading.Condition()
        self._ended = False
        with open(log_path, "ab") as log:
            self.process = subprocess.Popen(
                ["java", *JVM, f"-Xmx{heap}", *jvm, "-cp", class_path, main, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._reader = threading.Thread(target=self._read, name=f"reads {main}")
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break  # cut off by a kill
            name, at_ns, *fields = line.decode().rstrip("\n").split("\t")
            with self._more:
                self.events.append(Event(name, int(at_ns), tuple(fields)))
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def tell(self, *fields: str) -> None:
        """Writes one line to the program."""
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(fields).encode() + b"\n")
        self.process.stdin.flush()

    def wait_until(self, holds: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
        """Returns once `holds` is true; calls it after each event. AssertionError when it does not become true."""
        with self._more:
            met = self._more.wait_for(lambda: holds() or self._ended, seconds)
            assert met, f"no {what} after {seconds} s; last events: {self.events[-5:]}\n{self.log()}"
            assert holds(), f"the program ended without {what}\n{self.log()}"

    def wait_event(self, name: str, *fields: str, count: int = 1, seconds: float = DEADLINE_SECONDS) -> Event:
        """The `count`-th event with this name and these first fields; waits for it."""
        self.wait_until(lambda: len(list(self.find(name, *fields))) >= count, f"event {name} {fields}", seconds)
        return list(self.find(name, *fields))[count - 1]

    def find(self, name: str, *fields: str) -> Iterator[Event]:
        """The events so far with this name and these first fields."""
        return (event for event in self.events if event.name == name and event.fields[: len(fields)] == fields)

    def log(self) -> str:
        """The end of what it wrote to its error output."""
        return self.log_path.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """kill -9."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.killed_ns is None:
            self.killed_ns = time.monotonic_ns()
        self._close()

    def finish(self, seconds: float = DEADLINE_SECONDS) -> None:
        """Closes its input, which ends it, and waits. AssertionError on an exit code other than 0."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(seconds)
        self._close()
        assert code == 0, f"exit code {code}\n{self.log()}"

    def _close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._reader.join(20)
        try:
            self.process.stdin.close()
        except BrokenPipeError:  # a line that was not read yet
            pass
        self.process.stdout.close()

    def __enter__(self) -> JavaProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
