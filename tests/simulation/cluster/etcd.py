"""What etcd tells: sessions and an election, each of which may end at any step, whatever is true of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.cluster.broker import Broker


class Etcd:
    """`elected`: the broker that the election names; others may not have heard of it."""

    def __init__(self) -> None:
        self.sessions: dict[int, bool] = {}  # by broker number; False: it is over
        self.elected: Broker | None = None

    def is_alive(self, number: int) -> bool:
        """Whether the session of a broker number is not over. An unknown number has none."""
        return self.sessions.get(number, False)

    def begin(self, number: int) -> None:
        """A number was given: its broker has a session."""
        self.sessions[number] = True

    def end(self, number: int) -> None:
        """A session is over. It never comes back: a broker gets another number."""
        self.sessions[number] = False
