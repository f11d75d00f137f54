"""Kafka's numbers in compiled code: those of the Python tables, and written down once."""

from __future__ import annotations

import re
from pathlib import Path

from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey

FAST = Path(__file__).parents[4] / "kbroker/_fast"
NUMBERS = FAST / "base/kafka.pxd"
CONSTANT = re.compile(r"^ +([A-Z_]+) = (\d+)\b", re.MULTILINE)


def test_the_numbers_are_those_of_the_python_tables() -> None:
    constants = {name: int(value) for name, value in CONSTANT.findall(NUMBERS.read_text())}
    api_keys = {name: value for name, value in constants.items() if name.startswith("API_")}
    assert api_keys == {name: ApiKey[name.removeprefix("API_")] for name in api_keys}
    error_codes = {name: value for name, value in constants.items() if name not in api_keys}
    assert error_codes == {name: ErrorCode[name] for name in error_codes}
    assert api_keys
    assert error_codes


def test_no_other_compiled_file_defines_an_error_code() -> None:
    found = [
        f"{path.relative_to(FAST)}: {name}"
        for path in FAST.rglob("*.p[yx][xd]")
        if path != NUMBERS
        for name, _ in CONSTANT.findall(path.read_text())
        if name in ErrorCode.__members__
    ]
    assert found == []


def test_every_number_is_used() -> None:
    sources = "".join(path.read_text() for path in FAST.rglob("*.p[yx][xd]") if path != NUMBERS)
    names = [name for name, _ in CONSTANT.findall(NUMBERS.read_text())]
    assert [name for name in names if not re.search(rf"\b{name}\b", sources)] == []
