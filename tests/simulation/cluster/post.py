"""Where a broker's messages go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cluster.protocol.messages import (
    CONTROLLER,
    EVERY_BROKER,
    CommitAnswer,
    CommitRequest,
    Destination,
    Message,
    ReadyRequest,
    RegisterRequest,
    StreamedRecord,
    Verdict,
)
from tests.simulation.cluster.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.broker import Broker


class Post:
    """The Transport of the process at a place."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def send(self, to: Destination, message: Message) -> None:
        """Sends it to the processes that have this address now. Raises Violation for a part that is refused: the
        judge lets none through that no record can have."""
        world, sender = self._broker.world, self._broker
        for answer in message.answers if isinstance(message, CommitAnswer) else ():
            if answer.verdict is Verdict.REFUSED:
                raise Violation(f"the check of a record refuses it: {answer.reason}")
        if not sender.is_running:
            return
        if to == CONTROLLER:
            controller = world.find_controller()
            if controller is not None:
                self._post(controller, message, None)
        elif to == EVERY_BROKER:
            for broker in world.brokers:
                if broker.is_running and broker is not sender:
                    self._post(broker, message, None)
        else:
            for broker in world.brokers:
                if broker.is_running and to in (broker.number, broker.nonce):
                    self._post(broker, message, broker.incarnation)

    def _post(self, receiver: Broker, message: Message, incarnation: int | None) -> None:
        kind = (
            "record"
            if isinstance(message, StreamedRecord)
            else "request"
            if isinstance(message, CommitRequest | RegisterRequest | ReadyRequest)
            else "answer"
        )
        self._broker.world.network.send(self._broker, receiver, kind, lambda: receiver.deliver(message), incarnation)
