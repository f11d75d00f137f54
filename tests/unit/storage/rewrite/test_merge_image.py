"""CRCs without their end, and the index and reference of several images as one."""


import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._fast.base.crc32c import combine, crc32c
from kbroker.errors import CorruptionError
from kbroker.storage.formats.klix import encode_object
from kbroker.storage.manifest.partition_state import SPAN_MAX, TIMES_UNKNOWN, ObjectRef
from kbroker.storage.rewrite.merge_image import crc_without_end, joined_times, load_image, merged_image
from kbroker.storage.rewrite.merge_source import MergeSource
from tests.reference.time_bounds import broken_bound, true_bounds
from tests.unit.storage.read.object_bucket import KEYS, ObjectBucket, batches, topic_id


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_crc_without_its_end(start, end):
    assert crc_without_end(crc32c(start + end), crc32c(end), len(end)) == crc32c(start)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**40))
def test_a_crc_without_an_end_of_any_length(start, end, length):
    assert crc_without_end(combine(start, end, length), end, length) == start


def loaded(bucket, whole=True):
    images = []
    for ref in bucket.image.objects_from(topic_id("t"), 0):
        data = bucket.store.get(ref.key, ref.start, ref.length, if_match=ref.etag)
        tail = data if whole else data[-(data[-5] * 32 + 8) :]
        images.append(load_image(ref, memoryview(tail)))
    return images


@pytest.mark.parametrize("whole", [True, False])
def test_index_and_reference_of_several_images_as_one(whole):
    bucket = ObjectBucket()
    bucket.klix("t", 0, batches(0, 5))
    bucket.pack([("t", 0, batches(15, 2)), ("u", 0, batches(0, 3))])
    bucket.klix("t", 0, batches(21, 4, codec="lz4"))
    everything = batches(0, 7) + batches(21, 4, codec="lz4")
    wanted = encode_object(everything)
    built, footer = merged_image(loaded(bucket, whole), (topic_id("t"), 0), 77)
    assert everything + footer == wanted
    reference = [3, 0, 33, 77, len(wanted), crc32c(wanted), 1, built.max_timestamp, 33, -1, -1]
    assert built.row(3).reference() == reference
    assert built.max_timestamp == max(ref.max_timestamp for ref in bucket.image.objects_from(topic_id("t"), 0))


TIMES = st.integers(0, 100) | st.just(-1) | st.integers(-(2**63), 2**63 - 1)
IMAGES = st.lists(
    st.lists(st.lists(TIMES, max_size=3).map(lambda times: (max([-1, *times]), times)), min_size=1, max_size=3),
    min_size=1, max_size=5,
)  # fmt: skip


def ref_of(times):
    """A reference of which only the fields that merging looks at matter."""
    smallest, late_ms = true_bounds(times)
    return ObjectRef(
        key="k", kind="klix", base_offset=0, end_offset=1, start=0, length=1, size=1, etag="e", crc32c=1,
        leader_epoch=1, max_timestamp=max(newest for newest, _ in times),
        record_count=sum(len(found) for _, found in times), created_ms=1, min_timestamp=smallest, late_ms=late_ms,
    )  # fmt: skip


@given(IMAGES)
def test_times_of_several_images_are_those_of_all_their_batches(images):
    refs = [ref_of(times) for times in images]
    smallest, late_ms = joined_times(refs)
    everything = [batch for times in images for batch in times]
    assert broken_bound(everything, refs[0]._replace(min_timestamp=smallest, late_ms=late_ms)) is None
    if all(found for _, found in everything):
        assert (smallest, late_ms) == true_bounds(everything)


def test_what_one_image_does_not_know_is_not_known():
    known, later = ref_of([(10, [5, 10])]), ref_of([(20, [15, 20])])
    assert joined_times([known, later]) == (5, 0)
    assert joined_times([later, known]) == (5, 15)
    assert joined_times([known, later._replace(late_ms=-1)]) == (5, -1)
    smallest, late_ms = joined_times([known, later._replace(min_timestamp=TIMES_UNKNOWN)])
    assert smallest == TIMES_UNKNOWN
    assert late_ms > SPAN_MAX
    empty = ref_of([(3, [])])
    assert joined_times([empty, known]) == (5, 0)
    assert joined_times([empty, empty]) == (3, 0)


def test_gaps_between_images_are_not_kept_in_memory():
    """Images of a few bytes may lie far apart in a pack: they come with one request, and only they are kept."""
    bucket = ObjectBucket()
    wide = batches(0, 1, size=20_000)
    bucket.pack([(name, part, batches(0, 1) if part % 2 else wide) for name in "abcd" for part in range(8)])
    small = [bucket.image.find(topic_id(name), part, 0) for name in "abcd" for part in range(1, 8, 2)]
    source = MergeSource(bucket.store, lambda count: None)
    images = source.whole_images(small).values()
    held = {id(image.image.obj): len(image.image.obj) for image in images}
    assert source.bytes_read > 20 * sum(ref.length for ref in small)
    assert sum(held.values()) == sum(ref.length for ref in small)


@pytest.mark.parametrize("place", [0, 70, -1, -5, -20, -40])
def test_a_damaged_image_is_found(place):
    bucket = ObjectBucket()
    key = bucket.klix("t", 0, batches(0, 3))
    ref = next(bucket.image.objects_from(topic_id("t"), 0))
    data = bytearray(bucket.store.get(key))
    data[place] ^= 4
    with pytest.raises(CorruptionError, match=KEYS.root):
        load_image(ref, memoryview(data))
