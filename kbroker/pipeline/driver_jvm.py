"""Java source compiled in the driver's JVM, with the compiler that Spark itself generates code with: no jar is needed.

Raises what py4j raises, or AttributeError, TypeError or AssertionError where there is no such JVM (Spark Connect):
UNREACHABLE names them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNREACHABLE = (Py4JError, AttributeError, TypeError, AssertionError)


def call_static(spark: SparkSession, source: str, class_name: str, method: str, *given: tuple[str, Any]) -> None:
    """Compiles `source` and calls a static method of its class; `given` are names of types and values."""
    jvm, gateway = spark.sparkContext._jvm, spark.sparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(source)
    compiled = compiler.getClassLoader().loadClass(class_name)
    types = gateway.new_array(jvm.java.lang.Class, len(given))
    values = gateway.new_array(jvm.java.lang.Object, len(given))
    for index, (type_name, value) in enumerate(given):
        types[index] = jvm.java.lang.Class.forName(type_name)
        values[index] = value
    compiled.getMethod(method, types).invoke(None, values)
