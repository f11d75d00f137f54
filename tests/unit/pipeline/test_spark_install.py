"""What is said, before a JVM is launched, of a machine on which Spark cannot run."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pyspark
import pytest

from kbroker.pipeline import spark_install
from kbroker.pipeline.spark_install import (
    SparkJars,
    SparkUnusable,
    check_java,
    check_kafka_source,
    check_packages,
    check_pyspark,
    find_jars,
    java_oldest,
    java_version,
    requirement,
)

JAVA_17_CLASS = struct.pack(">IHH", 0xCAFEBABE, 0, 61)


@pytest.fixture
def jars(tmp_path: Path) -> SparkJars:
    """The part of Spark's jars that is looked at."""
    folder = tmp_path / "spark" / "jars"
    folder.mkdir(parents=True)
    (folder / "spark-core_2.13-4.1.9.jar").touch()
    with zipfile.ZipFile(folder / "spark-launcher_2.13-4.1.9.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "")
        jar.writestr("org/apache/spark/launcher/Main.class", JAVA_17_CLASS)
    return SparkJars(folder, "2.13", "4.1.9")


def java(folder: Path, script: str) -> Path:
    """A Java that is a shell script; returns what JAVA_HOME is to be."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return folder


def says(version: str) -> str:
    return f"""echo 'openjdk version "{version}" 2025-04-15' >&2"""


@pytest.mark.parametrize(
    ("version", "feature"), [("17.0.15", 17), ("1.8.0_392", 8), ("21", 21), ("25-ea", 25), ("11.0.2", 11)]
)
def test_the_version_of_a_java_is_its_feature_release(tmp_path: Path, version: str, feature: int) -> None:
    assert java_version(str(java(tmp_path, says(version)) / "bin" / "java")) == feature


@pytest.mark.parametrize("version", ["17.0.15", "21.0.1"])
def test_a_java_that_spark_runs_on_passes(
    version: str, jars: SparkJars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "java", says(version))))
    check_java(jars)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "24.0.1", "25"])
def test_another_java_is_refused_with_those_that_would_do(
    version: str, jars: SparkJars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "java", says(version))))
    with pytest.raises(SparkUnusable, match=r"Spark 4\.1\.9 needs 17 or 21: install Java 17 or 21.*JAVA_HOME is"):
        check_java(jars)


def test_a_java_on_the_path_counts_without_java_home(
    jars: SparkJars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(java(tmp_path / "java", says("11.0.2")) / "bin"))
    with pytest.raises(SparkUnusable, match=r"java/bin/java is Java 11.*set JAVA_HOME to it"):
        check_java(jars)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnusable, match="there is none on PATH: install Java 17 or 21"):
        check_java(jars)


def test_a_java_home_without_java_is_named(jars: SparkJars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnusable, match=f"JAVA_HOME is {tmp_path}, where there is no bin/java"):
        check_java(jars)


@pytest.mark.parametrize("script", ["echo 'Unable to locate a Java Runtime.' >&2; exit 1", "exit 0"])
def test_a_java_that_does_not_run_is_an_error(script: str, tmp_path: Path) -> None:
    with pytest.raises(SparkUnusable, match=r"-version fails: (Unable to locate a Java Runtime|no output)"):
        java_version(str(java(tmp_path, script) / "bin" / "java"))


def test_the_oldest_java_is_read_from_sparks_classes(jars: SparkJars) -> None:
    assert java_oldest(jars) == 17
    (jars.folder / "spark-launcher_2.13-4.1.9.jar").write_bytes(b"no jar")
    with pytest.raises(SparkUnusable, match="cannot be read"):
        java_oldest(jars)


def test_jars_of_spark_home_must_be_of_the_line_of_pyspark(jars: SparkJars, monkeypatch: pytest.MonkeyPatch) -> None:
    home = jars.folder.parent
    monkeypatch.setenv("SPARK_HOME", str(home))
    assert find_jars() == jars
    (jars.folder / "spark-core_2.13-4.1.9.jar").rename(jars.folder / "spark-core_2.12-3.5.1.jar")
    with pytest.raises(SparkUnusable, match=r"has Spark 3\.5\.1, PySpark is 4\.1\.\d+: unset SPARK_HOME"):
        find_jars()
    monkeypatch.setenv("SPARK_HOME", str(home / "nowhere"))
    with pytest.raises(SparkUnusable, match="nowhere, which has no Spark: unset it"):
        find_jars()


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_install, "find_spec", lambda name: None if name == "pyarrow" else object())
    with pytest.raises(SparkUnusable, match="pyarrow is missing: pip install 'pyarrow>=15'"):
        check_packages()
    assert requirement("pyspark").startswith("pyspark<")
    assert requirement("unknown") == "unknown"


def test_a_pyspark_of_another_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    with pytest.raises(SparkUnusable, match=r"PySpark is 3\.5\.1: pip install 'pyspark<"):
        check_pyspark()


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.jars.packages": "a:b:1,org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.1"},
        {"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"},
        {"spark.jars": "/x.jar,/jars/spark-sql-kafka-0-10_2.13-4.0.0.jar"},
    ],
)
def test_a_kafka_source_of_another_spark_is_refused_with_the_right_one(conf: dict[str, str], jars: SparkJars) -> None:
    with pytest.raises(SparkUnusable, match=r"use org\.apache\.spark:spark-sql-kafka-0-10_2\.13:4\.1\.9$"):
        check_kafka_source(conf, jars)


def test_a_kafka_source_of_this_spark_passes(jars: SparkJars) -> None:
    check_kafka_source({"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.9"}, jars)
    check_kafka_source({"spark.jars": "/jars/spark-sql-kafka-0-10_2.13-4.1.9.jar", "spark.ui.enabled": "false"}, jars)
