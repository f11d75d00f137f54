"""An admin client: its requests are sent until they are answered, each time to the controller of that moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.cluster.topics import Build, Change

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

WAITING_MAX = 4  # more: the oldest is given up


class Admin:
    """`waiting`: changes of the metadata without an answer, with what follows from one."""

    def __init__(self, world: World) -> None:
        self.waiting: list[Build] = []
        self._world = world
        self._done: dict[Build, Callable[[], None]] = {}

    def ask(self, build: Build, on_done: Callable[[], None]) -> None:
        """A new request."""
        self.waiting.append(build)
        self._done[build] = on_done
        if len(self.waiting) > WAITING_MAX:
            self.waiting.pop(0)
        self._send(build)

    def step(self) -> None:
        """A request has timed out: it is sent again, to the controller of now."""
        if self.waiting:
            self._send(self._world.rng.choice(self.waiting))

    def repeat_all(self) -> None:
        """Sends all that wait."""
        for build in self.waiting:
            self._send(build)

    def _send(self, build: Build) -> None:
        world, receiver = self._world, self._world.find_controller()

        def arrive() -> None:
            controller = receiver.controller if receiver is not None else None
            if controller is not None and controller.leads:
                controller.submit(Change(build, lambda: self._stored(build)))

        world.network.send(None, receiver, "admin", arrive)

    def _stored(self, build: Build) -> None:
        self._done[build]()  # whether or not the answer arrives
        world = self._world
        if world.is_healing or world.rng.random() >= world.weather.loss:
            self.waiting = [other for other in self.waiting if other is not build]
