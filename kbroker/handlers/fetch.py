"""Fetch (key 1), versions 4-17: the compiled path serves it (kbroker._fast.fetch_path), not a Python handler.

Behaviour:
- Whole batches only. The first partition that has data gets at least one batch, whatever the limits (KIP-74); a later
  one whose first batch does not fit is empty. Order is the request's; in a session, partitions that were served go
  behind the others when an answer was full.
- Answers at once on any error, diverging epoch, or min.bytes; else parks until data comes, at most max.wait. A request
  that arrives behind a parked fetch on the same connection ends the wait.
- Offsets below what the write-ahead log holds are read from objects by the cold reader; a fetch waits for it at most
  max.wait, the read goes on and serves the next fetch.
- Incremental sessions (KIP-227), shared by all connections; when there is no room the client stays sessionless.

Versions: v5 log start offset. v7 sessions. v9 leader epoch check. v10 zstd topics allowed. v12 flexible, diverging
epoch. v13 topic ids. v16 current leader with FENCED_LEADER_EPOCH.

Gaps: one broker has no preferred read replica and no node endpoints; replica fields are read and ignored.
"""
