"""Checks that this machine has what Spark needs: packages, a supported Java, jars of one version.

The checks run before a JVM is launched, which takes seconds and fails with a page of text.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

SPARK_LINE = "4.1"
PACKAGES = ("pyspark", "pyarrow", "pandas")
# Hadoop 3.4.2, which Spark 4.1 ships, calls a method that Java 24 removed (SPARK-54276).
JAVA_NEWEST = 23
JAVA_LONG_TERM = (17, 21, 25)
JAVA_SECONDS = 20.0  # for `java -version` on a busy machine
CLASS_VERSION_OF_JAVA_0 = 44  # a class file's major version is Java's plus this
KAFKA_SOURCE = "spark-sql-kafka-0-10"


class SparkUnusable(ImportError):
    """Spark cannot run here; the message is one line that says what to do."""


class SparkJars(NamedTuple):
    """The jars that a session would use."""

    folder: Path
    scala: str  # binary version, as in names of jars
    version: str


def check_packages(*names: str) -> None:
    """Raises SparkUnusable if a package is missing; by default checks those that every job needs."""
    missing = [name for name in names or PACKAGES if find_spec(name) is None]
    if missing:
        wanted = " ".join(f"'{requirement(name)}'" for name in missing)
        raise SparkUnusable(f"{', '.join(missing)} is missing: pip install {wanted}")


def requirement(package: str) -> str:
    """The requirement of a package for pip, from kbroker's metadata: ``pyarrow>=15``."""
    try:
        listed = importlib.metadata.requires("kbroker") or []
    except importlib.metadata.PackageNotFoundError:
        return package
    wanted = (line.partition(";")[0].strip() for line in listed)
    return next((line for line in wanted if re.match(rf"{package}(?![\w.-])", line)), package)


def check_pyspark() -> None:
    """Raises SparkUnusable if pyspark is missing or has an unsupported version."""
    check_packages()
    import pyspark

    if not pyspark.__version__.startswith(f"{SPARK_LINE}."):
        raise SparkUnusable(f"PySpark is {pyspark.__version__}: pip install '{requirement('pyspark')}'")


def check_install(conf: Mapping[str, str]) -> None:
    """Raises SparkUnusable if a session with these settings could not start here."""
    check_pyspark()
    jars = find_jars()
    check_java(jars)
    check_kafka_source(conf, jars)


def find_jars() -> SparkJars:
    """The jars of SPARK_HOME, else of pyspark. Raises SparkUnusable if they are missing or do not match pyspark."""
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    home = os.environ.get("SPARK_HOME")
    folder = Path(home or _find_spark_home()) / "jars"
    where = f"SPARK_HOME is {home}, which" if home else str(folder)
    for path in folder.glob("spark-core_*.jar"):
        if found := re.fullmatch(r"spark-core_([\d.]+)-(.+)\.jar", path.name):
            jars = SparkJars(folder, found[1], found[2])
            if not jars.version.startswith(f"{SPARK_LINE}."):
                raise SparkUnusable(
                    f"{where} has Spark {jars.version}, PySpark is {pyspark.__version__}: unset SPARK_HOME"
                )
            return jars
    raise SparkUnusable(f"{where} has no Spark: " + ("unset it" if home else "pip install --force-reinstall pyspark"))


def check_java(jars: SparkJars) -> None:
    """Raises SparkUnusable if Spark would find no Java, or one that it does not support."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else "java"  # as Spark's bin/spark-class does
    oldest = java_oldest(jars)
    versions = " or ".join(str(each) for each in JAVA_LONG_TERM if oldest <= each <= JAVA_NEWEST)
    install = f"install Java {versions}, for example apt-get install openjdk-{oldest}-jre-headless"
    path = shutil.which(command)
    if path is None and home:
        raise SparkUnusable(
            f"JAVA_HOME is {home}, where there is no bin/java: set it to a Java {versions}, or unset it"
        )
    if path is None:
        raise SparkUnusable(f"Spark needs Java, and there is none on PATH: {install}")
    version = java_version(path)
    if not oldest <= version <= JAVA_NEWEST:
        hint = "set JAVA_HOME to it" if home is None else f"JAVA_HOME is {home}: set it to that one"
        raise SparkUnusable(f"{path} is Java {version}, and Spark {jars.version} needs {versions}: {install}; {hint}")


def java_version(path: str) -> int:
    """The feature version of a Java: 8, 17, 21. Raises SparkUnusable."""
    try:
        done = subprocess.run(
            [path, "-version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=JAVA_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkUnusable(f"{path} does not run: {error}") from None
    said = (done.stderr + done.stdout).decode(errors="replace")
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if done.returncode or found is None:
        first = next((line for line in said.splitlines() if line.strip()), "no output")
        raise SparkUnusable(f"{path} -version fails: {first:.200}")
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])  # 1.8 is Java 8


def java_oldest(jars: SparkJars) -> int:
    """The Java that Spark's classes are compiled for. Raises SparkUnusable."""
    name = f"spark-launcher_{jars.scala}-{jars.version}.jar"
    try:
        with zipfile.ZipFile(jars.folder / name) as jar:
            entry = next(each for each in jar.namelist() if each.endswith(".class"))
            with jar.open(entry) as data:
                _, _, major = struct.unpack(">IHH", data.read(8))
    except (OSError, zipfile.BadZipFile, StopIteration, struct.error) as error:
        raise SparkUnusable(f"{jars.folder / name} cannot be read: {error}") from None
    return int(major) - CLASS_VERSION_OF_JAVA_0


def kafka_package() -> str:
    """Spark's kafka source for the installed PySpark, as ``spark.jars.packages`` takes it. Raises SparkUnusable."""
    check_pyspark()
    return _package(find_jars())


def _package(jars: SparkJars) -> str:
    return f"org.apache.spark:{KAFKA_SOURCE}_{jars.scala}:{jars.version}"


def check_kafka_source(conf: Mapping[str, str], jars: SparkJars) -> None:
    """Raises SparkUnusable if the settings name the kafka source of another Spark release line or Scala version."""
    for key in ("spark.jars.packages", "spark.jars"):
        for name in conf.get(key, "").split(","):
            found = re.search(rf"{KAFKA_SOURCE}_([\d.]+)[:-](\d+\.\d+)\.", name)
            if found and (found[1], found[2]) != (jars.scala, SPARK_LINE):
                raise SparkUnusable(
                    f"{key} has {name.strip()}, which is not of Spark {jars.version}: use {_package(jars)}"
                )
