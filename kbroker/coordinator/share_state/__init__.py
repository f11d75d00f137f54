"""The durable state of the partitions that share groups read (KIP-932)."""
