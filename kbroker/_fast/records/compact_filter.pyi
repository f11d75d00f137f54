from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import Buffer

from kbroker._fast.records.key_map import KeyMap
from kbroker._fast.records.section_codec import PlainSections

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
    def changed_end(self) -> int: ...
    @property
    def horizon_ms(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    def feed(self, block: Buffer) -> None: ...
    def take(self) -> tuple[bytes, bytes]: ...
    def aborted_without_batches(self) -> list[int]: ...
