"""Log folders of Apache Kafka: read for an import, and written by an export (docs/formats/kafka-log.md)."""
