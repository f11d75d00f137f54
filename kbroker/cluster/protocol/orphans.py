"""Which objects in the bucket no record names and none can name any more (cluster protocol §2.4)."""

from __future__ import annotations

from kbroker.storage.formats.object_keys import Author
from kbroker.storage.manifest.image import ManifestImage


def is_orphan(key: str, author: Author, image: ManifestImage, own_number: int, oldest_under_way: int) -> bool:
    """Whether an object, by its key below the root, may be deleted. The listing that has it is older than `image`."""
    if image.is_known(key):
        return False
    return author_is_fenced(author, image) or is_own_and_over(author, own_number, oldest_under_way)


def author_is_fenced(author: Author, image: ManifestImage) -> bool:
    """Its broker can commit nothing more, by a record. An ended lease or a low number proves nothing."""
    return image.is_fenced(author.number)


def is_own_and_over(author: Author, own_number: int, oldest_under_way: int) -> bool:
    """It is one's own, and older than everything that one has under way (Commits.oldest_under_way)."""
    return author.number == own_number and author.counter < oldest_under_way
