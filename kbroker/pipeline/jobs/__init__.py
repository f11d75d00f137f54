"""Pipelines as PySpark jobs: ``kbroker pipeline NAME``, or the module's file with spark-submit.

A module per job, with its command in `command`. What its tasks call lies in other modules: under spark-submit the
job's own module is `__main__`, which a worker cannot import.
"""
