"""Errors on their way from a Spark worker to the driver's terminal, without a session."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.serializers import SpecialLengths, UTF8Deserializer, read_int
from pyspark.util import handle_worker_exception

from kbroker.errors import CorruptionError
from kbroker.pipeline import error_hook
from kbroker.pipeline.data_loss import DataLossError
from kbroker.pipeline.errors import HIDE_TRACEBACK, WORKER_VARIABLES, in_one_line, rows_in_one_line
from kbroker.pipeline.options import OptionError
from kbroker.storage.stores.object_store import StoreUnavailable


class Reader:
    """Fails as it is told."""

    def __init__(self, error: Exception, **options: str) -> None:
        self.options = options
        self._error = error

    @in_one_line
    def partitions(self) -> list[int]:
        raise self._error

    @rows_in_one_line
    def read(self, partition: int):
        yield partition
        raise self._error


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKER_VARIABLES[0], "x")
    monkeypatch.setenv(HIDE_TRACEBACK, "")


def sent(reader: Reader) -> set[str]:
    """What PySpark sends to the driver, for a plan and for a task."""
    texts = set()
    for work in (reader.partitions, lambda: list(reader.read(0))):
        out = io.BytesIO()
        try:
            work()
        except Exception as error:
            handle_worker_exception(error, out)
        out.seek(0)
        assert read_int(out) == SpecialLengths.PYTHON_EXCEPTION_THROWN
        texts.add(UTF8Deserializer().loads(out))
    return texts


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("kind", [OptionError, DataLossError, CorruptionError, StoreUnavailable])
def test_an_error_of_ours_is_sent_as_one_line(kind: type[Exception]) -> None:
    assert sent(Reader(kind("a\n  b"))) == {f"kbroker.{kind.__name__}: a b\n"}


@pytest.mark.usefixtures("worker")
def test_a_defect_or_an_error_with_debug_is_sent_with_its_traceback() -> None:
    for reader in (Reader(KeyError("k")), Reader(OptionError("a"), Debug="True")):
        for text in sent(reader):
            assert text.startswith(error_hook.TRACEBACK)
            assert "in partitions" in text or "in read" in text


def test_outside_of_a_worker_errors_stay_what_they_are() -> None:
    with pytest.raises(OptionError):
        Reader(OptionError("a")).partitions()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AnalysisException("[X] Failed: kbroker.OptionError: no option 'a'\n SQLSTATE: 38000"), "no option 'a'"),
        (AnalysisException("[X] [Y] kbroker.OptionError: b: c SQLSTATE: 38000 SQLSTATE: XXKST"), "b: c"),
        (PythonException("\n  An exception\nkbroker.CorruptionError: key: bad\n"), "key: bad"),
        (AnalysisException(f"[X] {error_hook.TRACEBACK}\n  File\nkbroker.OptionError: a"), None),
        (AnalysisException("[TABLE_NOT_FOUND] kbroker"), None),
        (ValueError("kbroker.OptionError: a"), None),
    ],
)
def test_the_words_of_the_source_are_found_in_an_error_of_spark(error: Exception, words: str | None) -> None:
    assert error_hook.source_message(error) == words


HOOKED = """
from pyspark.errors import AnalysisException
from kbroker.pipeline import error_hook

for _ in range(2):
    error_hook.install()
raise {error}
"""


def test_an_uncaught_error_of_the_source_is_one_line_and_others_have_their_traceback() -> None:
    said = {}
    for words in ("kbroker.OptionError: no option 'a'", "[TABLE_NOT_FOUND]"):
        program = HOOKED.format(error=f"AnalysisException({words!r})")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        said[words] = done.stderr
    assert said["kbroker.OptionError: no option 'a'"] == "kbroker: no option 'a' (<string>, line 7)\n"
    assert said["[TABLE_NOT_FOUND]"].startswith(error_hook.TRACEBACK)
