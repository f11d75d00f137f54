"""Where a broker's messages go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cluster.protocol.messages import (
    CONTROLLER,
    EVERY_BROKER,
    CommitRequest,
    Destination,
    Message,
    ReadyRequest,
    RegisterRequest,
    StreamedRecord,
)

if TYPE_CHECKING:
    from tests.simulation.cluster.broker import Broker


class Post:
    """The Transport of the process at a place."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def send(self, to: Destination, message: Message) -> None:
        """Sends it to the processes that have this address now."""
        world, sender = self._broker.world, self._broker
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
