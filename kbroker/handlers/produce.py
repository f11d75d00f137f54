"""Produce (key 0), versions 3-13: served by kbroker._fast.requests.produce_path, not a Python handler.

Behaviour:
- One record batch (magic 2) per partition; the CRC is always checked; compressed batches are decompressed to check
  them, large ones on a worker. A batch is accepted or refused as a whole; partitions succeed or fail on their own.
- The topic's rules: timestamp type and bounds, null keys, sizes, and compression.type, for which a batch is re-encoded
  (compressed batches with offset deltas out of order are too).
- acks=1 and acks=all both wait until the data is durable; acks=0 has no answer, and an error closes the connection.
- While the write-ahead log has no space the request waits, at most its own timeout; what was not appended by then is
  answered with NOT_ENOUGH_REPLICAS (19).
- Requests of one connection overlap (pipelining); their answers keep the order.
- Internal topics refuse clients (17), but for Kafka's admin client id.
- A transactional batch whose producer has no open transaction in the partition waits for the transaction coordinator
  (KIP-890): one question per request, bounded by its timeout. "Not now" is answered with NOT_ENOUGH_REPLICAS (19).
- A partition that is not led here: NOT_LEADER_OR_FOLLOWER (6). Batches that waited when its leadership ended get it as
  well, at once, whether they are in its log or not: idempotent producers find out from the next leader.

Versions: v7 zstd. v8 record errors and error message. v9 flexible. v10 current leader and node endpoints with
NOT_LEADER_OR_FOLLOWER (KIP-951). v11 TRANSACTION_ABORTABLE (120) where older ones get INVALID_TXN_STATE (48). v12 the
request itself adds its partitions to the transaction; CONCURRENT_TRANSACTIONS (51) is retried here for 100 ms, then
answered. v13 topic ids.
Versions 0-2 are listed in ApiVersions for librdkafka's sake and refused by closing the connection, as Kafka does
(KAFKA-18659).

Gaps: none.
"""
