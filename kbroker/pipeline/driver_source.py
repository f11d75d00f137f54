"""Installs the source's Java classes in the driver's JVM, for interfaces of Spark that its Python API lacks.

Janino, which Spark ships to compile its generated code, compiles the sources in `java/` there, so no jar is installed.
The classes go into a jar in a folder that Spark deletes at exit. The jar is added to the class loader which all driver
threads inherit, and Spark sends it to executors in other processes.
"""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

logger = logging.getLogger(__name__)

JAVA = Path(__file__).parent / "java"
SOURCE_CLASS = "kbroker.spark.KbrokerSource"
SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
JAR = "kbroker-spark.jar"
JAVA_VERSION = 8  # the language level that Janino supports; static interface methods need it
# What py4j raises, and what is raised where there is no such JVM (Spark Connect).
UNREACHABLE = (Py4JError, AttributeError, TypeError, AssertionError, LookupError, OSError)

_lock = threading.Lock()


def register(spark: SparkSession, source: type[DataSource]) -> bool:
    """Registers `source` in all sessions of this JVM, with the Java classes. If these cannot be loaded, logs a warning,
    registers it in this session through Spark's Python API, and returns False."""
    try:
        with _lock:
            _use(spark, source)
    except (ImportError, *UNREACHABLE) as error:
        logger.warning(
            "format('%s'): this driver's JVM cannot load the source's classes, so queries read all columns and rows "
            "before they filter, and limits of micro-batches are refused: %s",
            source.name(),
            str(error).splitlines()[0] if str(error) else type(error).__name__,
        )
        spark.dataSource.register(source)
        return False
    return True


def _use(spark: SparkSession, source: type[DataSource]) -> None:
    """Passes the Python class to the Java one."""
    from pyspark.sql.udf import _wrap_function

    jvm, gateway = spark.sparkContext._jvm, spark.sparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    installed = _installed(jvm, gateway)
    python = jvm.org.apache.spark.sql.execution.datasources.v2.python
    wrapped = python.UserDefinedPythonDataSource(_wrap_function(spark.sparkContext, source))
    given = gateway.new_array(jvm.java.lang.Object, 1)
    given[0] = wrapped
    types = gateway.new_array(jvm.java.lang.Class, 1)
    types[0] = wrapped.getClass()
    installed.getMethod("use", types).invoke(None, given)
    _send_to_executors(spark.sparkContext._jsc.sc(), installed)


def _send_to_executors(context: Any, installed: Any) -> None:
    """Lets executors load the classes, once for each Spark context; those of a local master are in this JVM."""
    if not context.isLocal() and JAR not in context.listJars().mkString(" "):
        context.addJar(installed.getProtectionDomain().getCodeSource().getLocation().toString())


def _installed(jvm: Any, gateway: Any) -> Any:
    """The Java class of the source, compiled if this JVM has none yet."""
    loader = _shared_loader(jvm)
    try:
        return loader.loadClass(SOURCE_CLASS)
    except Py4JError:
        folder = jvm.org.apache.spark.util.Utils.createTempDir(jvm.java.lang.System.getProperty("java.io.tmpdir"), "kb")
    classes = Path(folder.getPath()) / "classes"
    service = classes / SERVICE
    service.parent.mkdir(parents=True)
    service.write_text(SOURCE_CLASS + "\n", encoding="utf-8")
    _compile(jvm, gateway, loader, jvm.java.io.File(str(classes)))
    jar = Path(shutil.make_archive(str(classes), "zip", classes)).rename(classes.with_name(JAR))
    loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    return loader.loadClass(SOURCE_CLASS)


def _shared_loader(jvm: Any) -> Any:
    """The topmost class loader that accepts more classes: spark-submit's, an ancestor of all threads' loaders."""
    mutable = jvm.java.lang.Class.forName("org.apache.spark.util.MutableURLClassLoader")
    found = None
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    while loader is not None:
        if mutable.isInstance(loader):
            found = loader
        loader = loader.getParent()
    if found is None:
        raise LookupError("no class loader of spark-submit")
    return found


def _compile(jvm: Any, gateway: Any, loader: Any, folder: Any) -> None:
    """Compiles the Java sources against `loader`; `folder` is a java.io.File. Raises Py4JError."""
    sources = sorted(JAVA.glob("*.java"))
    files = gateway.new_array(jvm.java.io.File, len(sources))
    for index, path in enumerate(sources):
        files[index] = jvm.java.io.File(str(path))
    compiler = jvm.org.codehaus.janino.Compiler()
    compiler.setIClassLoader(jvm.org.codehaus.janino.ClassLoaderIClassLoader(loader))
    compiler.setDestinationDirectory(folder, False)
    compiler.setSourceVersion(JAVA_VERSION)
    compiler.setTargetVersion(JAVA_VERSION)
    compiler.compile(files)
