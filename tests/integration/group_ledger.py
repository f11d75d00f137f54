"""Judges the reports of a consumer group's members: which member owned and processed what, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from java_program import Event, JavaProgram

Place = tuple[int, int]  # partition, offset


@dataclass(frozen=True, slots=True)
class Step:
    """An event of a member, or its end."""

    at_ns: int
    member: str
    what: str
    partitions: frozenset[int] = frozenset()
    places: tuple[Place, ...] = ()


def steps(programs: Iterable[JavaProgram]) -> list[Step]:
    """All that happened, in order; a killed program is the end of each of its members."""
    found: list[Step] = []
    for program in programs:
        said = list(program.events)
        found += (step for event in said if (step := _step(event)))
        if program.killed_ns is not None:
            names = {event.fields[0] for event in said if event.name == "assigned"}
            ended = {event.fields[0] for event in said if event.name == "ended"}
            found += (Step(program.killed_ns, name, "killed") for name in names - ended)
    return sorted(found, key=lambda step: step.at_ns)


def _step(event: Event) -> Step | None:
    if event.name in ("assigned", "revoked", "lost"):
        numbers = frozenset(int(number) for number in event.fields[1].split(",") if number)
        return Step(event.at_ns, event.fields[0], event.name, numbers)
    if event.name == "processed":
        member, _, partition, offsets = event.fields
        places = tuple((int(partition), int(offset)) for offset in offsets.split(","))
        return Step(event.at_ns, member, event.name, frozenset({int(partition)}), places)
    if event.name == "ended":
        return Step(event.at_ns, event.fields[0], event.fields[1])
    return None


def processed(programs: Iterable[JavaProgram]) -> Iterator[Step]:
    """The processed records, in order."""
    return (step for step in steps(programs) if step.what == "processed")


def owners(programs: Iterable[JavaProgram]) -> dict[int, str]:
    """The owner of each partition now."""
    owned: dict[int, str] = {}
    for step in steps(programs):
        _apply(owned, step)
    return owned


def _apply(owned: dict[int, str], step: Step) -> None:
    if step.what == "assigned":
        owned.update(dict.fromkeys(step.partitions, step.member))
    elif step.what != "processed":
        given_up = step.partitions if step.what in ("revoked", "lost") else frozenset(owned)
        for partition in given_up:
            if owned.get(partition) == step.member:
                del owned[partition]


def check_ownership(programs: Iterable[JavaProgram]) -> None:
    """No partition had two owners at a time, and each record was processed by the owner of its partition."""
    owned: dict[int, str] = {}
    for step in steps(programs):
        if step.what == "assigned":
            taken = {partition: owned[partition] for partition in step.partitions if partition in owned}
            others = {partition: owner for partition, owner in taken.items() if owner != step.member}
            assert not others, f"{step.member} was assigned what another owns: {others}"
        elif step.what == "processed":
            assert [owned.get(partition) for partition in step.partitions] == [step.member], f"{step}: {owned}"
        else:
            assert step.what in ("revoked", "closed", "interrupted", "killed"), step
        _apply(owned, step)
    assert owned == {}


def check_processing(programs: Iterable[JavaProgram], ends: Sequence[int]) -> None:
    """All up to the end offsets was processed, in order but for what a stopped member had not committed."""
    all_steps = steps(programs)
    stopped = {step.member for step in all_steps if step.what in ("interrupted", "killed")}
    last: dict[int, tuple[int, str]] = {}
    for step in all_steps:
        for partition, offset in step.places:
            position, member = last.get(partition, (-1, ""))
            repeats = offset <= position
            assert not repeats or (member in stopped and member != step.member), (
                f"{step.member} processed {partition}:{offset} after {member} had come to {position}"
            )
            assert offset <= position + 1, f"{step.member} left out {partition}:{position + 1} to {offset}"
            last[partition] = (offset, step.member)
    assert [last[partition][0] + 1 for partition in range(len(ends))] == list(ends)
