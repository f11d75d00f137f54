"""Fetch (key 1), versions 4-18: the compiled path serves it (kbroker._fast.requests.fetch_path), not a Python handler.

Behaviour:
- Whole batches only. The first partition that has data gets at least one batch, whatever the limits (KIP-74); a later
  one whose first batch does not fit is empty. Order is the request's; in a session, served partitions move to
  the end when an answer was full.
- Answers at once on any error, diverging epoch, or min.bytes; else parks until data comes, at most max.wait. A request
  that arrives after a parked fetch on the same connection ends the wait.
- Offsets below what the write-ahead log holds are read from objects by the cold reader; a fetch waits for it at most
  max.wait, the read continues and serves the next fetch.
- Incremental sessions (KIP-227), shared by all connections; when there is no room the client stays sessionless.

Versions: v5 log start offset. v6 KAFKA_STORAGE_ERROR (56) where older ones get NOT_LEADER_OR_FOLLOWER (6). v7 sessions.
v9 leader epoch check. v10 topics with compression.type=zstd, which older ones get UNSUPPORTED_COMPRESSION_TYPE (76) for
(KIP-110; Kafka 4 sends them what they may be unable to read). v12 flexible, diverging epoch. v13 topic ids. v16 current
leader and node endpoints with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH (KIP-951). v18 a follower's high
watermark, which is ignored.

A zstd batch that a producer put into a topic with compression.type=producer is sent to every version, as Kafka does.

Gaps: there is no preferred read replica; replica fields are read and ignored.
"""
