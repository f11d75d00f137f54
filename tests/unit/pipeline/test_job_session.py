"""What a job prints when it fails: one line, the text of the original error."""

from __future__ import annotations

import pytest
from pyspark.errors import PythonException

from kbroker.cluster.metadata_state import RECORD_KIND as METADATA_KIND
from kbroker.cluster.records import TopicCreated, payload
from kbroker.pipeline.jobs.compact import Compaction
from kbroker.pipeline.jobs.session import Job, JobError, reason_of
from kbroker.pipeline.options import OptionError
from tests.unit.pipeline.cluster_bucket import PLACE, ClusterBucket
from tests.unit.storage.read.object_bucket import topic_id

KEY = "kbroker-x/_packs/0000000001-00000000000000000003.pack"
TRACEBACK = f"""
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/venv/kbroker/pipeline/object_batches.py", line 186, in _load
    check_batches(data, int(entries["base_offset"][0]), index)
  File "/venv/kbroker/pipeline/object_batches.py", line 188, in _load
    raise CorruptionError(f"{{ref.key}}: from byte {{window.start}} on: {{error}}") from None
kbroker.errors.CorruptionError: {KEY}: from byte 0 on: batch 0: the CRC does not match
"""
MISSING = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source 'kbroker' in Python runtime: Error
Traceback (most recent call last):
  File "/venv/kbroker/pipeline/spark_source.py", line 36, in load
    raise RuntimeError(
RuntimeError: format('kbroker'): a Spark worker runs /x/python, which cannot import pyarrow
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TRACEBACK, f"{KEY}: from byte 0 on: batch 0: the CRC does not match"),
        (MISSING, "format('kbroker'): a Spark worker runs /x/python, which cannot import pyarrow"),
        ("[PATH_NOT_FOUND] Path does not exist: file:/nix.", "[PATH_NOT_FOUND] Path does not exist: file:/nix."),
        (
            "An error occurred\n: java.io.IOException: no space left\n\tat a.b(C.scala:1)",
            ": java.io.IOException: no space left",
        ),
    ],
)
def test_the_reason_is_the_text_of_the_original_error(text: str, reason: str) -> None:
    assert reason_of(PythonException(message=text)) == reason


def test_a_partition_that_a_topic_does_not_have_is_an_error() -> None:
    bucket = ClusterBucket()
    created = TopicCreated("t", topic_id("t"), 2, {"cleanup.policy": "compact"})
    bucket.metadata.append(METADATA_KIND, payload([created]))
    work = Compaction(
        Job("compact", PLACE, quiet=True), bucket.view(), "t", slice_bytes=1000, wait_seconds=1, data_dir=None
    )
    with pytest.raises(JobError, match="topic t has 2 partitions, no 2"):
        work.run([0, 2])
    assert work.run([0, 1]) == []  # nothing is there to compact


@pytest.mark.parametrize(
    ("error", "debug", "code", "line"),
    [
        (OptionError("--columns: no x"), False, 2, "kbroker: --columns: no x"),
        (JobError("two\nlines"), False, 1, "kbroker: two lines"),
        (ZeroDivisionError("division by zero"), False, 1, "kbroker: ZeroDivisionError: division by zero"),
        (JobError("no"), True, 1, "kbroker: no"),
    ],
)
def test_an_error_of_a_job_is_one_line_and_with_debug_its_traceback_too(
    error: Exception, debug: bool, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, Job("audit", PLACE, debug=debug):
        raise error
    assert ended.value.code == code
    said = capsys.readouterr().err
    assert said.splitlines()[-1] == line
    assert ("Traceback" in said) is debug
    assert debug or said.count("\n") == 1
