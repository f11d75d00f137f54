"""How a start gets its broker number: what it saves and sends, and how it is judged (cluster protocol §2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kbroker.cluster.protocol.messages import Positions, ReadyRequest, RegisterAnswer, RegisterRequest
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import Registered, Registration

NO_NUMBER = 0


class SavedIdentity(NamedTuple):
    """What a data directory remembers of its starts: the last number, and the nonces of starts that saved none since.

    `refusal` of the last start is not saved: each start asks again.
    """

    directory_id: str
    number: int = NO_NUMBER
    nonces: tuple[str, ...] = ()


class Description(NamedTuple):
    """What a start tells of itself. `place`: machine, file system and inode of the data directory."""

    node_id: int
    place: str
    rack: str = ""
    listeners: str = ""
    release: str = ""


class Start:
    """The sender's side. `save` makes an identity durable before it returns.

    `number` is NO_NUMBER until it is saved; `refusal` is set when the start must end.
    """

    def __init__(
        self,
        identity: SavedIdentity,
        nonce: str,
        description: Description,
        save: Callable[[SavedIdentity], None],
    ) -> None:
        self.number = NO_NUMBER
        self.refusal = ""
        self.nonce = nonce
        self._description = description
        self._save = save
        self._identity = identity._replace(nonces=(*identity.nonces, nonce))
        save(self._identity)  # before it is sent: a number that is given to it must be recognised later

    @property
    def directory_id(self) -> str:
        """Of the data directory."""
        return self._identity.directory_id

    def request(self, positions: Positions) -> RegisterRequest | ReadyRequest:
        """What the controller must hear: sent again and again, also to the next controller."""
        if self.number:
            return ReadyRequest(self.number)
        identity = self._identity
        return RegisterRequest(
            identity.directory_id, identity.number, identity.nonces, *self._description, positions=positions
        )

    def answer(self, answer: RegisterAnswer) -> None:
        """Takes the number, once it is saved."""
        if answer.nonce != self.nonce or self.number or self.refusal:
            return
        if answer.refusal:
            self.refusal = answer.refusal
            return
        self._identity = SavedIdentity(self._identity.directory_id, answer.number)
        self._save(self._identity)
        self.number = answer.number


class Known(NamedTuple):
    """The start has this number already."""

    number: int


class Refused(NamedTuple):
    """The start must end; the reason names what is wrong."""

    reason: str


class Wait(NamedTuple):
    """No answer yet: the start asks again."""


def judge_registration(
    request: RegisterRequest, image: ManifestImage, number: int, is_alive: Callable[[int], bool]
) -> Registration | Known | Refused | Wait:
    """The registration to be recorded, with this number, or another answer."""
    known = image.registrations.get(request.directory_id)
    if known is not None and has_this_number(request, known):
        return Known(known.registration.number)
    if is_copy(request, known):
        return Refused(copy_text(request, known))
    if known is not None and waits_for_lease(request, known, is_alive):
        return Wait()
    other = holder_of_node_id(request, image, is_alive)
    if other is not None:
        return Refused(
            f"node id {request.node_id} is in use by broker {other.number} at {other.place}: choose another, or stop it"
        )
    return Registration(
        number=number,
        directory_id=request.directory_id,
        node_id=request.node_id,
        nonce=request.nonce,
        place=request.place,
        rack=request.rack,
        listeners=request.listeners,
        release=request.release,
        fences=fences_earlier_number(),
    )


def has_this_number(request: RegisterRequest, known: Registered) -> bool:
    """§2.1: a request that is sent again, or doubled, gets the number that its nonce was given."""
    return known.registration.nonce == request.nonce


def is_copy(request: RegisterRequest, known: Registered | None) -> bool:
    """§2.2: a directory whose saved number is not the ledger's is a copy or a restored backup."""
    expected = known.registration.number if known is not None else NO_NUMBER
    return request.saved_number != expected and not (known is not None and is_unfinished_start(request, known))


def is_unfinished_start(request: RegisterRequest, known: Registered) -> bool:
    """§2.1: an earlier start of this directory ended before it saved the number that it was given."""
    return known.registration.nonce in request.nonces and not known.used


def waits_for_lease(request: RegisterRequest, known: Registered, is_alive: Callable[[int], bool]) -> bool:
    """§2.3: seen at another place, a directory may be a copy made just now: its original may still run."""
    return known.registration.place != request.place and is_alive(known.registration.number)


def fences_earlier_number() -> bool:
    """§2.3: the earlier number of the directory can commit nothing from the registration on."""
    return True


def holder_of_node_id(
    request: RegisterRequest, image: ManifestImage, is_alive: Callable[[int], bool]
) -> Registration | None:
    """§2.3: the live registration of this node id by another directory."""
    for directory_id, (registration, _, fenced) in image.registrations.items():
        is_other = registration.node_id == request.node_id and directory_id != request.directory_id
        if is_other and not fenced and is_alive(registration.number):
            return registration
    return None


def copy_text(request: RegisterRequest, known: Registered | None) -> str:
    """Why a copy is refused."""
    ledger = f"broker {known.registration.number}" if known is not None else "no broker"
    saved = f"broker {request.saved_number}" if request.saved_number else "no broker"
    return (
        f"data directory {request.directory_id} at {request.place} ran last as {saved}, but the cluster has {ledger} "
        "for it: it is a copy or a restored backup"
    )
