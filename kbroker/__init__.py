"""kbroker: a Kafka broker whose data lives in object storage."""

__version__ = "0.1.0"
