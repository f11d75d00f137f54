"""Kafka's semantics of a partition, stated once, above the bytes of kbroker.storage."""
