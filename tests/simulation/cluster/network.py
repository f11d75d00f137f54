"""Messages between processes: delayed, reordered, doubled, dropped."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, Protocol

IN_FLIGHT_MAX = 40  # more: an old one is lost


class Host(Protocol):
    """A place that processes run on; None as a sender is a client."""

    is_running: bool
    is_paused: bool
    is_cut: bool  # from the other hosts; clients and the store reach it
    incarnation: int


class Message(NamedTuple):
    """`incarnation`: of the process that it is for; None: for whichever runs there."""

    sender: Host | None
    receiver: Host
    incarnation: int | None
    kind: str
    deliver: Callable[[], Any]


class Network:
    """`laggard` hears little of the stream and is hardly heard by the controller."""

    def __init__(self, rng: Random, loss: float, doubling: float) -> None:
        self.messages: list[Message] = []
        self.loss, self.doubling = loss, doubling
        self.laggard: Host | None = None
        self._rng = rng

    def send(
        self,
        sender: Host | None,
        receiver: Host | None,
        kind: str,
        deliver: Callable[[], Any],
        incarnation: int | None = None,
    ) -> None:
        """`deliver` is called if and when it arrives. None as receiver: there is none."""
        if receiver is not None:
            self.messages.append(Message(sender, receiver, incarnation, kind, deliver))

    def deliver(self, place: int, is_healing: bool) -> None:
        """One step of a message."""
        message = self.messages[place]
        if message.receiver.is_paused:
            return
        self.messages[place] = self.messages[-1]
        self.messages.pop()
        if not is_healing and self._is_lost(message):
            return
        sender, receiver, incarnation = message.sender, message.receiver, message.incarnation
        if sender is not None and sender is not receiver and (sender.is_cut or receiver.is_cut):
            return
        if receiver.is_running and (incarnation is None or incarnation == receiver.incarnation):
            message.deliver()

    def _is_lost(self, message: Message) -> bool:
        draw = self._rng.random()
        if draw < self.doubling:
            self.messages.append(message)
            return False
        if draw > 1 - self.loss:
            return True
        if self.laggard is None:
            return False
        return (message.receiver is self.laggard and message.kind == "record" and draw > 0.05) or (
            message.sender is self.laggard and message.kind == "request" and draw > 0.4
        )

    def shed(self) -> None:
        """Loses one of the older messages when there are many."""
        if len(self.messages) > IN_FLIGHT_MAX:
            self.messages.pop(self._rng.randrange(IN_FLIGHT_MAX // 2))
