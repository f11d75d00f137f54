"""Chooses which of a partition's images in the bucket make up its log. No I/O.

Between overlapping images the higher leader epoch decides, as in Kafka: records of an earlier leader at or after the
offset where a later one began are not in the log. Within one epoch the choice leaves the fewest offsets out; of several
such the later generation is taken, because a rewritten object replaces those that it covers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from kbroker.exchange.recover.survey import FoundImage


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets [base_offset, end_offset) of the log, in an image; `image` is None for a gap.

    `whole`: the manifest can name the image as it is. Otherwise these offsets are stored again by themselves.
    """

    base_offset: int
    end_offset: int
    image: FoundImage | None
    whole: bool = True


@dataclass(slots=True)
class Chain:
    """Contiguous pieces, and the decisions for the report."""

    pieces: list[Piece] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Usable:
    image: FoundImage
    base_offset: int
    end_offset: int

    @property
    def whole(self) -> bool:
        return self.end_offset == self.image.end_offset


def choose(images: Sequence[FoundImage], log_start_offset: int, highest_offset: int) -> Chain:
    """The log from the first image that reaches beyond the log start on, up to `highest_offset`, exclusive.

    `highest_offset`: the highest end that was ever seen of the partition; the log extends at least to it, so that no
    offset is reused.
    """
    chain = Chain()
    usable = _by_epoch(images, log_start_offset, chain)
    taken = _most_offsets(usable)
    pieces = [Piece(item.base_offset, item.end_offset, item.image, item.whole) for item in taken]
    pieces = _filled(pieces, usable, taken)
    _note_choices(chain, usable, pieces)
    _join(chain, pieces, highest_offset)
    return chain


def _by_epoch(images: Sequence[FoundImage], log_start_offset: int, chain: Chain) -> list[_Usable]:
    """The part of each image that no later leader replaced."""
    starts: dict[int, int] = {}
    for image in images:
        for epoch, start in image.epochs:
            starts[epoch] = min(start, starts.get(epoch, start))
    usable = []
    for image in images:
        if image.end_offset <= log_start_offset:
            chain.choices.append(f"{image.name} is below the log start {log_start_offset}: left")
            continue
        end_offset = image.end_offset
        for place, (epoch, start) in enumerate(image.epochs):
            below = image.epochs[place + 1][1] if place + 1 < len(image.epochs) else image.end_offset
            began = min((at for later, at in starts.items() if later > epoch), default=below)
            if began < below:
                end_offset = min(end_offset, max(began, start))
        if end_offset <= image.base_offset:
            later = min(((at, epoch) for epoch, at in starts.items() if epoch > image.epochs[0][0]))
            chain.choices.append(
                f"{image.name}, offsets {image.base_offset} to {image.end_offset} of leader epoch "
                f"{image.epochs[-1][0]}: left, leader epoch {later[1]} began at offset {later[0]}"
            )
            continue
        usable.append(_Usable(image, image.base_offset, end_offset))
    return usable


def _rank(item: _Usable) -> tuple[int, int, int]:
    """Order of runs with as many offsets: rewritten later, known, fewer objects."""
    length = item.end_offset - item.base_offset
    return item.image.generation * length, item.image.known * length, -1


def _most_offsets(usable: list[_Usable]) -> list[_Usable]:
    """Those that do not overlap and together have the most offsets (weighted interval scheduling)."""
    order = sorted(usable, key=lambda item: (item.end_offset, item.base_offset, item.image.name))
    ends = [item.end_offset for item in order]
    best: list[tuple[tuple[int, ...], int]] = [((0, 0, 0, 0), -1)]  # of the first n: (value, last chosen)
    for place, item in enumerate(order):
        before = best[bisect_right(ends, item.base_offset, 0, place)][0]
        length = item.end_offset - item.base_offset
        value = tuple(map(sum, zip(before, (length, *_rank(item)), strict=True)))
        best.append(max((value, place), best[-1], key=lambda entry: entry[0]))
    taken: list[_Usable] = []
    count = len(order)
    while count and best[count][1] >= 0:
        place = best[count][1]
        taken.append(order[place])
        count = bisect_right(ends, order[place].base_offset, 0, place)
    return taken[::-1]


def _filled(pieces: list[Piece], usable: list[_Usable], taken: list[_Usable]) -> list[Piece]:
    """The pieces, with parts of unchosen images where offsets are missing between them or at the ends."""
    filled = list(pieces)
    chosen = {id(item) for item in taken}
    left = sorted((item for item in usable if id(item) not in chosen), key=lambda item: -item.image.generation)
    for item in left:
        offset = item.base_offset
        for piece in tuple(filled):
            if piece.end_offset > offset and piece.base_offset < item.end_offset:
                if piece.base_offset > offset:
                    filled.append(Piece(offset, piece.base_offset, item.image, whole=False))
                offset = piece.end_offset
        if offset < item.end_offset:
            filled.append(Piece(offset, item.end_offset, item.image, whole=False))
        filled.sort(key=lambda piece: piece.base_offset)
    return filled


def _note_choices(chain: Chain, usable: list[_Usable], pieces: list[Piece]) -> None:
    used = {id(piece.image) for piece in pieces}
    for item in usable:
        image = item.image
        if id(image) in used:
            continue
        instead = [
            piece.image
            for piece in pieces
            if piece.image and piece.base_offset < item.end_offset and piece.end_offset > item.base_offset
        ]
        chain.choices.append(
            f"{image.name}, offsets {image.base_offset} to {image.end_offset}: left for "
            f"{', '.join(other.name for other in instead[:3])}{', ...' if len(instead) > 3 else ''}"
        )
    for piece in pieces:
        if piece.image is not None and not piece.whole:
            chain.choices.append(
                f"{piece.image.name}: only offsets {piece.base_offset} to {piece.end_offset} of it, stored again"
            )


def _join(chain: Chain, pieces: list[Piece], highest_offset: int) -> None:
    """Closes gaps: a rewritten object may end in a gap; elsewhere a batch without records is inserted."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and last.end_offset < piece.base_offset:
            gap = f"offsets {last.end_offset} to {piece.base_offset}: no object has them"
            if last.image is not None and last.whole and last.image.rewritten:
                joined[-1] = Piece(last.base_offset, piece.base_offset, last.image)
                gap += f"; they follow {last.image.name}: compaction may have taken them, or they are lost"
            else:
                joined.append(Piece(last.end_offset, piece.base_offset, None))
                gap += ": lost"
            chain.gaps.append(gap)
        joined.append(piece)
    if joined and joined[-1].end_offset < highest_offset:
        last = joined[-1]
        chain.gaps.append(
            f"offsets {last.end_offset} to {highest_offset}: seen, but no usable object has them; never given again"
        )
        joined.append(Piece(last.end_offset, highest_offset, None))
    chain.pieces = joined
