from collections.abc import Iterable, Sequence

from typing_extensions import Buffer

from kbroker._fast.records.key_map import KeyMap
from kbroker._fast.records.section_codec import PlainSections

class AbortedRanges:
    def __init__(self, transactions: Iterable[Sequence[int]] = ()) -> None: ...

class KeyScan:
    def __init__(
        self,
        key_map: KeyMap,
        start_offset: int,
        end_offset: int,
        aborted: Iterable[Sequence[int]] = (),
        sections: PlainSections | None = None,
    ) -> None: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def full(self) -> bool: ...
    @property
    def done(self) -> bool: ...
    def feed(self, block: Buffer) -> bool: ...
