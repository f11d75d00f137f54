"""One large object from ranges of others: copied by the store where they make a part, else read and sent.

The bytes are verified before the object is committed: against the manifest's CRCs of the sources, if the store returns
the CRC of a copied part or the part was sent from here; if it returns none, by reading the batches at the seams; if it
returns another (some stores return that of the whole source), by reading the copy back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from kbroker._fast.base.crc32c import combine, crc32c
from kbroker._fast.records.batch_check import check_batches
from kbroker.errors import CorruptionError
from kbroker.limits import MIB
from kbroker.storage.formats.klix import KlixFooter
from kbroker.storage.rewrite.merge_image import LoadedImage
from kbroker.storage.rewrite.merge_layout import Part, Range, lay_out
from kbroker.storage.rewrite.merge_source import MergeSource
from kbroker.storage.stores.object_store import BytesBody, ObjectMeta, ObjectStore, StoreError, UploadedPart

READ_BACK_BYTES = 4 * MIB


class MergeUpload:
    """The multipart upload of one object. Used by one thread.

    `bytes_copied` were copied within the store, `bytes_sent` were sent from here.
    """

    def __init__(
        self, store: ObjectStore, source: MergeSource, acquire: Callable[[int], None], key: str, footer: bytes
    ) -> None:
        self._store = store
        self._source = source
        self._acquire = acquire
        self._key = key
        self._footer = footer
        self._crcs: dict[int, tuple[int | None, int]] = {}  # source -> CRC-32C and count of its bytes so far
        self._copied: set[int] = set()  # sources that were copied at least in part
        self._upload_id = ""
        self.bytes_copied = 0
        self.bytes_sent = 0

    def store(self, images: Sequence[LoadedImage]) -> ObjectMeta:
        """Completes and verifies the object. Raises StoreError, CorruptionError; then no upload is left."""
        self._upload_id = self._store.create_multipart(self._key)
        try:
            layout = lay_out([image.footer.data_length for image in images])
            parts = [self._store_part(number, part, images, len(layout)) for number, part in enumerate(layout, 1)]
            unproven = self._check_crcs(images)
            meta = self._store.complete_multipart(self._key, self._upload_id, parts, if_none_match=True)
        except BaseException:
            with contextlib.suppress(StoreError):
                self._store.abort_multipart(self._key, self._upload_id)
            raise
        self._verify(meta, images, unproven)
        return meta

    def _store_part(self, number: int, part: Part, images: Sequence[LoadedImage], count: int) -> UploadedPart:
        if part.copied:
            (piece,) = part.ranges
            ref = images[piece.source].ref
            self._acquire(piece.length)
            stored = self._store.upload_part_copy(
                self._key, self._upload_id, number, ref.key, ref.start + piece.start, piece.length, if_match=ref.etag
            )
            self.bytes_copied += piece.length
            self._copied.add(piece.source)
            # The CRC of the whole source object instead of the part's: it proves nothing.
            self._note(piece, stored.crc32c if stored.crc32c != ref.crc32c else None)
            return stored
        body = bytearray()
        for piece in part.ranges:
            ref = images[piece.source].ref
            data = self._source.read(ref, ref.start + piece.start, piece.length)
            self._note(piece, crc32c(data))
            body += data
        if number == count:
            body += self._footer
        self._acquire(len(body))
        body_crc = crc32c(body)
        stored = self._store.upload_part(
            self._key, self._upload_id, number, BytesBody(memoryview(body)), crc32c=body_crc
        )
        self.bytes_sent += len(body)
        return stored

    def _note(self, piece: Range, crc: int | None) -> None:
        """Adds a piece to its source's CRC; pieces come in order."""
        before, length = self._crcs.get(piece.source, (0, 0))
        joined = combine(before, crc, piece.length) if before is not None and crc is not None else None
        self._crcs[piece.source] = joined, length + piece.length

    def _check_crcs(self, images: Sequence[LoadedImage]) -> tuple[list[int], list[int]]:
        """Checks the CRC of each source against the manifest: (sources of unknown CRC, of another one)."""
        unknown, other = [], []
        for place, image in enumerate(images):
            crc, length = self._crcs[place]
            if length != image.footer.data_length:
                raise AssertionError(f"{length} of {image.footer.data_length} bytes of {image.ref.key}")
            if crc is None:
                unknown.append(place)
            elif crc != image.data_crc32c:
                if place not in self._copied:
                    where = f"{image.ref.key}: from byte {image.ref.start} on"
                    raise CorruptionError(f"{where}: the CRC of the batches is not what the manifest says")
                other.append(place)
        return unknown, other

    def _verify(self, meta: ObjectMeta, images: Sequence[LoadedImage], unproven: tuple[list[int], list[int]]) -> None:
        """Reads back the index and the unverified copies."""
        starts = [0]
        for image in images:
            starts.append(starts[-1] + image.footer.data_length)
        found = self._store.head(self._key)
        index = self._read(meta, starts[-1], len(self._footer))
        if (found.size, found.etag) != (meta.size, meta.etag) or meta.size != starts[-1] + len(index):
            raise CorruptionError(f"{self._key}: {found.size} bytes, ETag {found.etag} after storing {meta}")
        if index != self._footer:
            raise CorruptionError(f"{self._key}: its index is not what was stored")
        unknown, other = unproven
        for place in unknown:
            self._check_seams(meta, images[place].footer, starts[place])
        for place in other:
            crc = 0
            for start in range(starts[place], starts[place + 1], READ_BACK_BYTES):
                crc = crc32c(self._read(meta, start, min(READ_BACK_BYTES, starts[place + 1] - start)), crc)
            if crc != images[place].data_crc32c:
                raise CorruptionError(
                    f"{self._key}: from byte {starts[place]} on: the CRC is not what the manifest says of "
                    f"{images[place].ref.key}"
                )

    def _check_seams(self, meta: ObjectMeta, footer: KlixFooter, start: int) -> None:
        """The first and the last batch of a source, which begins at byte `start` of the new object."""
        for batch in {0, len(footer) - 1}:
            position, length = footer.batch_range(batch)
            entry = footer.entries[batch : batch + 1]
            data = self._read(meta, start + position, length)
            try:
                check_batches(data, int(entry["base_offset"][0]), memoryview(entry.tobytes()))
            except ValueError as error:
                raise CorruptionError(f"{self._key}: at byte {start + position}: {error}") from None

    def _read(self, meta: ObjectMeta, start: int, length: int) -> bytes:
        self._acquire(length)
        return self._store.get(self._key, start, length, if_match=meta.etag)
