"""What all jobs have in common: the options that name bucket and cluster, the Spark session, tasks, progress, errors.

A job is a click command under `job_options(NAME)`, which passes it a `Job`. Progress goes to stderr; stdout gets one
line of JSON at the end, the summary. Exit codes: 0 done, 1 failed (one line says why), 2 usage.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker.clock import Clock, SystemClock
from kbroker.pipeline import is_submitted, s3_settings, start_session
from kbroker.pipeline.error_hook import is_of_spark, source_message
from kbroker.pipeline.errors import one_line
from kbroker.pipeline.jobs.progress import Progress
from kbroker.pipeline.options import OptionError, Place
from kbroker.pipeline.spark_install import check_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_FAILED, EXIT_USAGE = 1, 2
NO_LOG = Path(__file__).with_name("log4j2-off.properties")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# The last line of a worker's traceback; other lines of it show the code that makes it.
_TASK_REASON = re.compile(r'^RuntimeError: kbroker task failed: ("(?:[^"\\]|\\.)*")\s*$', re.MULTILINE)
# In a traceback, the message of an error of kbroker; earlier lines are the program's.
_MESSAGE = re.compile(r"^kbroker(?:\.\w+)+: (.+)$", re.MULTILINE)
_PYTHON_ERROR = re.compile(r"^Traceback .*\n(?:[ \t].*\n|\n)+([\w.]+: .+)$", re.MULTILINE)

T = TypeVar("T")
R = TypeVar("R")


class JobError(Exception):
    """A job cannot do its work; the message is the one line that the user sees."""


def _is_expected(error: BaseException) -> bool:
    """An error that says what is wrong with the data, the options or the machine."""
    return type(error).__module__.startswith("kbroker.") or isinstance(error, ImportError | OSError)


def job_options(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options of all jobs to a click command; it gets `job`, a Job, which is closed when it returns.

    An exception becomes one line on stderr and exit code 1 (OptionError: 2); ``--debug`` shows its traceback too.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @click.option("--object-store", "url", default="file:./kbroker-data/objects", metavar="URL", show_default=True,
                      help="file:PATH or s3://bucket[/prefix], as the broker has it")  # fmt: skip
        @click.option("--s3-endpoint", "endpoint", metavar="URL", help="endpoint of an S3-compatible store")
        @click.option("--s3-region", "region", metavar="NAME", help="region of the bucket")
        @click.option("--cluster-id", metavar="ID", help="cluster to read (default: the only one in the store)")
        @click.option("--master", metavar="URL", help="Spark's master (default: spark-submit's, else local[*])")
        @click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="a Spark setting; repeatable")
        @click.option("--quiet", is_flag=True, help="no progress on stderr")
        @click.option("--debug", is_flag=True, help="show the traceback of an error, and Spark's own log")
        @functools.wraps(function)
        def run(
            url: str,
            endpoint: str | None,
            region: str | None,
            cluster_id: str | None,
            master: str | None,
            settings: tuple[str, ...],
            quiet: bool,
            debug: bool,
            **rest: Any,
        ) -> None:
            for setting in settings:
                if "=" not in setting:
                    raise click.UsageError(f"--conf {setting}: expected KEY=VALUE")
            conf = dict(setting.split("=", 1) for setting in settings)
            place = Place(url, cluster_id or None, endpoint or None, region or None)
            with Job(name, place, master=master, conf=conf, quiet=quiet, debug=debug) as job:
                check_packages()
                job.use_s3_settings()
                function(job=job, **rest)

        return run

    return decorate


class Job:
    """One run of a job. Used by one thread. As a context manager it ends the process for an error."""

    def __init__(
        self,
        name: str,
        place: Place,
        *,
        master: str | None = None,
        conf: dict[str, str] | None = None,
        quiet: bool = False,
        debug: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.place = place
        self.clock = clock or SystemClock()
        self._master = master
        self._conf = dict(conf or {})
        self._quiet = quiet
        self._debug = debug
        self._started_s = self.clock.monotonic()
        self._spark: SparkSession | None = None
        self._is_own = False

    @property
    def spark(self) -> SparkSession:
        """The session, with ``format("kbroker")``: the process' own where there is one (a notebook), else a new one,
        made on first use, which takes some seconds."""
        if self._spark is None:
            check_packages()
            from pyspark.sql import SparkSession

            self._is_own = SparkSession.getActiveSession() is None
            quiet = self._is_own and not is_submitted() and not self._debug
            self._spark = _session(f"kbroker-{self.name}", self._master, self._conf, quiet=quiet)
            s3_settings.use(s3_settings.read_settings(self._spark))
        return self._spark

    def use_s3_settings(self) -> None:
        """Lets stores that are opened before the session have its S3 settings. A session that waits to be made has
        those of ``--conf`` alone; spark-submit's has more, and its JVM runs already."""
        if is_submitted():
            assert self.spark is not None
        else:
            s3_settings.use(s3_settings.settings_of(self._conf))

    @property
    def cores(self) -> int:
        """How many tasks run at the same time."""
        return max(1, self.spark.sparkContext.defaultParallelism)

    @property
    def seconds(self) -> float:
        """Since the job began."""
        return self.clock.monotonic() - self._started_s

    def say(self, text: str) -> None:
        """Writes a line of progress to stderr."""
        if not self._quiet:
            click.echo(f"kbroker {self.name}: {text}", err=True)

    def summary(self, **values: Any) -> None:
        """The job's result, for programs: one line of JSON with the job's name and seconds, and `values`."""
        found = {"job": self.name, **values, "seconds": round(self.seconds, 3)}
        click.echo(json.dumps(found, ensure_ascii=False, default=str))

    def progress(self, what: str, records: Callable[[], int] | None = None, records_max: int | None = None) -> Progress:
        """Shows how many tasks of the Spark jobs that run in it are done; `what` names them."""
        context = self.spark.sparkContext
        return Progress(
            self.name, context, what, self.say, self.clock,
            quiet=self._quiet, records=records, records_max=records_max,
        )  # fmt: skip

    def run_tasks(
        self, function: Callable[[T], R], tasks: Sequence[T], what: str, records_max: int | None = None
    ) -> list[R]:
        """function(task) of every task, on the executors, one Spark task each; results in the order of `tasks`.

        Tasks and results are pickled. A task may run more than once, and at the same time (Spark's retries and
        speculation). `function` must be importable on the workers by its name: of no `__main__` (see the package's
        docstring). JobError with the reason when a task fails for good; `what` names tasks in the progress. With
        `records_max`, the progress has the sum of the results' `records` too.
        """
        assert function.__module__ != "__main__", f"{function.__qualname__}: a worker cannot import __main__"
        if not tasks:
            return []
        context = self.spark.sparkContext
        done = context.accumulator(0) if records_max is not None else None
        call = _caller(function.__module__, function.__qualname__, done)
        table = context.parallelize(list(tasks), len(tasks)).map(call)
        records = None if done is None else lambda: int(done.value)
        with self.progress(what, records, records_max):
            try:
                found: list[R] = table.collect()
            except Exception as error:
                raise JobError(reason_of(error)) from error
        return found

    def close(self) -> None:
        """Ends the session if it was made here."""
        if self._spark is not None and self._is_own:
            try:
                self._spark.stop()
            except Exception as error:  # its JVM is gone: the job's own error says so
                logging.getLogger(__name__).debug("the session did not stop: %s", error)
        self._spark = None

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if not isinstance(error, Exception) or isinstance(error, click.ClickException | click.exceptions.Exit):
            return
        if self._debug:
            traceback.print_exception(error)
        hint = "" if _is_expected(error) or is_of_spark(error) else f"{type(error).__name__}: "
        click.echo(f"kbroker: {hint}{reason_of(error)}", err=True)
        sys.exit(EXIT_USAGE if isinstance(error, OptionError) else EXIT_FAILED)


def _session(app: str, master: str | None, conf: dict[str, str], *, quiet: bool) -> SparkSession:
    defaults = {"spark.ui.showConsoleProgress": "false"} | ({} if is_submitted() else {"spark.ui.enabled": "false"})
    if quiet:  # an error is one line at the end
        conf = {**conf, JAVA_OPTIONS: f"-Dlog4j2.configurationFile={NO_LOG.as_uri()} {conf.get(JAVA_OPTIONS, '')}"}
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    return start_session(app, master=master, conf=defaults | conf)


def _caller(module: str, name: str, done: Any = None) -> Callable[[Any], Any]:
    """What a worker runs, pickled by value, so that a worker without kbroker gets far enough to report that.

    `done`, an accumulator of Spark's, is given the `records` of each result.
    """
    s3 = dict(s3_settings.used())

    def call(task: Any) -> Any:
        import importlib
        import json
        import sys

        try:
            try:
                function: Any = importlib.import_module(module)
                settle = importlib.import_module("kbroker.pipeline.worker_process").settle
                for part in name.split("."):
                    function = getattr(function, part)
            except ImportError as error:
                raise ImportError(
                    f"a Spark worker runs {sys.executable}, which cannot import {error.name}. Install kbroker "
                    "with its extra spark for that interpreter on every node, or set PYSPARK_PYTHON "
                    f"(spark.pyspark.python) to one that has it ({error})"
                ) from None
            settle()
            importlib.import_module("kbroker.pipeline.s3_settings").use(s3)
            result = function(task)
            if done is not None:
                done.add(result.records)
            return result
        except Exception as error:
            reason = str(error) if type(error).__module__.startswith("kbroker.") else f"{type(error).__name__}: {error}"
            raise RuntimeError("kbroker task failed: " + json.dumps(reason)) from error

    return call


def reason_of(error: BaseException) -> str:
    """Why something failed, in one line; for a failed Spark task, the error of the task."""
    text = str(error)
    found = _TASK_REASON.search(text)
    if found is not None:
        return one_line(json.loads(found[1]))
    if (message := source_message(error)) is not None:
        return message
    if is_of_spark(error):
        if own := _MESSAGE.findall(text):
            return one_line(own[-1])
        if python := _PYTHON_ERROR.findall(text):
            return one_line(python[-1].removeprefix("RuntimeError: "))
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "File "))]
        text = next((line for line in lines if "Exception" in line or "Error" in line), lines[0] if lines else text)
        return one_line(text)
    return one_line(text) if not isinstance(error, KeyError) else one_line(repr(error))
