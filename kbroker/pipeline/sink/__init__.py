"""The sink of ``format("kbroker")``: rows of a DataFrame into topics, through the broker.

Knows nothing of Spark: what Spark calls is in kbroker.pipeline.spark_source.
"""
