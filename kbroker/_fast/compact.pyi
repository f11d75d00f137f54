from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import Buffer

from kbroker._fast.key_map import KeyMap
from kbroker._fast.section_codec import PlainSections

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

class BatchFilter:
    def __init__(
        self,
        key_map: KeyMap,
        map_end: int,
        now_ms: int,
        delete_retention_ms: int,
        aborted: Iterable[Sequence[int]] = (),
        last_batches: Mapping[int, tuple[int, int]] | None = None,
        sections: PlainSections | None = None,
    ) -> None: ...
    @property
    def records_read(self) -> int: ...
    @property
    def records_kept(self) -> int: ...
    @property
    def changed(self) -> bool: ...
    @property
    def pending_bytes(self) -> int: ...
    def feed(self, block: Buffer) -> None: ...
    def take(self) -> tuple[bytes, bytes]: ...
    def aborted_without_batches(self) -> list[int]: ...
