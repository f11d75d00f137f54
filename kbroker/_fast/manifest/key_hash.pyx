"""The hash by which storage.manifest.key_table finds the key of an object."""

from cpython.long cimport PyLong_AsUnsignedLongLongMask
from libc.stdint cimport uint64_t

cdef enum:
    MIX = 29

cdef uint64_t MULTIPLIER = 0x9E3779B97F4A7C15


def hash_key(tuple values):
    """A 64-bit hash of a prefix's number and a PackedKey; storage.manifest.keys.hash_keys is the same for columns."""
    cdef uint64_t result = 0
    for value in values:
        result = (result ^ PyLong_AsUnsignedLongLongMask(value)) * MULTIPLIER
        result ^= result >> MIX
    return result
