"""Columns of every type as rows of int64."""

import struct

import numpy as np
import pytest

from kbroker._fast.manifest.unpack import unpack_rows

COLUMNS = {
    "q": [1, -(1 << 63), (1 << 63) - 1],
    "I": [1, 0, (1 << 32) - 1],
    "i": [1, -(1 << 31), (1 << 31) - 1],
    "h": [1, -(1 << 15), (1 << 15) - 1],
    "B": [1, 0, 255],
}
CODES = "".join(COLUMNS)
DATA = b"head" + b"".join(struct.pack(f"<3{code}", *values) for code, values in COLUMNS.items())


def test_columns_of_every_type_become_rows():
    rows = np.empty((3, len(CODES)), np.int64)
    assert unpack_rows(DATA, 4, CODES, rows) == len(DATA)
    assert rows.T.tolist() == list(COLUMNS.values())


@pytest.mark.parametrize(("data", "position", "codes"), [
    (DATA[:-1], 4, CODES), (DATA, 5, CODES), (DATA, -1, CODES), (DATA, 4, "qIih"), (DATA, 4, "qIihx"),
])  # fmt: skip
def test_columns_that_are_not_there_are_refused(data, position, codes):
    with pytest.raises(ValueError, match=r"bytes|type"):
        unpack_rows(data, position, codes, np.empty((3, len(CODES)), np.int64))
