"""Pipelines as PySpark jobs: ``kbroker pipeline NAME``, or the module's file with spark-submit.

Each job is a module, with its command in `command`. What its tasks call is in other modules: under spark-submit the
job's own module is `__main__`, which a worker cannot import.
"""
