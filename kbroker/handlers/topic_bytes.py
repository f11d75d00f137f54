"""A cache of the topics in Metadata answers, encoded: many clients ask for the same topics again and again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from kbroker.cluster.image import MetadataImage, TopicImage

FORMS_MAX = 8  # kinds of clients at a time; each takes 26 bytes and more per partition
GONE_MIN = 100

# By topic id: the topic, the leader epochs of its partitions, and the bytes of both.
Kept = dict[bytes, tuple[TopicImage, list[int], bytes]]


class TopicBytes:
    """Encoded topics by form: the version and what else the bytes depend on.

    Any thread. The topics of a form rely on the GIL alone: two threads may encode the same one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the table of forms
        self._forms: OrderedDict[tuple[int, int], Kept] = OrderedDict()

    def form(self, form: tuple[int, int], image: MetadataImage) -> Kept:
        """The cache of this form. Topics that `image` no longer has are dropped when they are many."""
        with self._lock:
            kept = self._forms.get(form)
            if kept is None:
                kept = self._forms[form] = {}
                if len(self._forms) > FORMS_MAX:
                    self._forms.popitem(last=False)
            self._forms.move_to_end(form)
            for other in self._forms.values():
                if len(other) > 2 * len(image.by_id) + GONE_MIN:
                    _forget_gone(other, image)
        return kept


def _forget_gone(kept: Kept, image: MetadataImage) -> None:
    for topic_id in list(kept):
        if topic_id not in image.by_id:
            kept.pop(topic_id, None)


def encoded(
    kept: Kept, topic: TopicImage, epochs: list[int], encode: Callable[[TopicImage, list[int]], bytes]
) -> bytes:
    """The cached bytes of the topic if neither it nor a leader epoch has changed, else those of `encode`."""
    known = kept.get(topic.topic_id)
    if known is not None and known[0] is topic and known[1] == epochs:
        return known[2]
    made = encode(topic, epochs)
    kept[topic.topic_id] = (topic, epochs, made)
    return made
