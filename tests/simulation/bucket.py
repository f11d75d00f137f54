"""The bucket of a simulated cluster, and each process's way to it: faults, crashes and interleavings happen here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import ObjectStore, PreconditionFailed, StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from kbroker.storage.stores.store_wrappers import StoreWrapper
from tests.simulation.tasks import Killed, Task

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker
    from tests.simulation.world import World

T = TypeVar("T")

CHANGES = {"put", "delete", "create_multipart", "upload_part", "upload_part_copy", "complete_multipart"}
FOREIGN = {  # of other programs, although some look like ours
    "kbroker-AAAAAAAAAAAAAAAAAAAAAA/t-00000000000000000000000000000001/0/00000000000000000000.obj": b"another cluster",
    "klite-x/t/0/00000000000000000000.obj": b"another product",
    "kbroker-{id}/notes.txt": b"another program's file",
    "kbroker-{id}/t-00000000000000000000000000000001/0/00000000000000000000.obj.bak": b"another program's copy",
}


class Request(NamedTuple):
    """A request that a process is about to make."""

    operation: str
    key: str
    send: Callable[[], Any]

    @property
    def changes(self) -> bool:
        """Would it change the bucket?"""
        return self.operation in CHANGES

    @property
    def holds_log(self) -> bool:
        """Is it made under the lock of a numbered log, so that no other operation of the process gets to that?"""
        return any(name in self.key for name in ("/_manifest/", "/_manifest_parts/", "/_metadata/"))


class WatchedStore(StoreWrapper):
    """The store itself, with the rules that hold whatever a client does."""

    def __init__(self, inner: MemoryStore, world: World) -> None:
        super().__init__(inner)
        self._world = world

    def put(self, key: str, body: Any, **conditions: Any) -> Any:
        if not any(conditions.get(name) for name in ("if_none_match", "if_match")) and "/checkpoint-" not in key:
            self._world.fail(f"{key} was put without a condition")
        return super().put(key, body, **conditions)

    def delete(self, keys: Iterable[str]) -> None:
        wanted = [*keys]
        self._world.check_deletion(wanted)
        super().delete(wanted)


class Client(FaultyStore):
    """One process's store. The world decides the fate of each request; a dead process makes none."""

    def __init__(self, inner: ObjectStore, world: World, process: SimulatedBroker) -> None:
        super().__init__(inner)
        self._world = world
        self._process = process

    @property
    def on_their_way(self) -> int:
        """Requests that will land some time."""
        return len(self._late)

    def _run(self, operation: str, key: str, bytes_out: int, call: Callable[[], T]) -> T:
        world, process = self._world, self._process
        if process.dead:
            raise Killed(process.name)
        request = Request(operation, key, call)
        if request.changes:
            process.check_may_write(request)
        if Task.running is not None:
            Task.running.pause(request)
            if process.dead:
                raise Killed(process.name)
        world.requests += 1
        process.requests_left -= 1
        if process.requests_left == 0:
            world.note(f"{process.name} crashes at {operation} {key}")
            self.cut_off(request)
            process.dead = True
            raise Killed(process.name)
        if world.outage:
            raise StoreUnavailable(f"{key}: {operation}: 503 SlowDown")
        fault = self.choose(operation, key) or self._fate(operation, key)
        if fault is None:
            return call()
        world.note(f"{process.name}: {operation} {key}: {fault.when.value} {fault.error.__name__}")
        return self._strike(fault, operation, key, call)

    def cut_off(self, request: Request) -> None:
        """The process dies during this request: the store executes it, or not, or later."""
        if request.changes and not self._world.outage:
            match self._world.rng.randrange(3):
                case 0:
                    self._attempt(request)
                case 1:
                    self._attempt(request, Fault(when=When.LATE))

    def _attempt(self, request: Request, fault: Fault | None = None) -> None:
        try:
            if fault is None:
                request.send()
            else:
                self._strike(fault, request.operation, request.key, request.send)
        except (StoreUnavailable, PreconditionFailed):
            pass

    def _fate(self, operation: str, key: str) -> Fault | None:
        rng, world = self._world.rng, self._world
        if world.fault_rate == 0.0 or rng.random() >= world.fault_rate:
            return None
        if operation in CHANGES:
            when = rng.choice((When.BEFORE, When.AFTER, When.LATE))
            if operation == "delete" and when is When.LATE and not world.late_deletes:
                when = When.AFTER
            conflict = operation == "put" and when is not When.LATE and "/checkpoint-" not in key
            return Fault(when=when, error=PreconditionFailed if conflict and rng.random() < 0.3 else StoreUnavailable)
        if operation == "get" and rng.random() < world.damage_rate:
            world.damaged = True
            return Fault(when=rng.choice((When.TRUNCATE, When.CORRUPT)))
        return Fault(when=When.BEFORE)
