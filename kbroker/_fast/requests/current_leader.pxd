# Who leads a partition instead, in answers of Produce and Fetch (KIP-951).
#
# Node endpoints, the tagged fields at the end of an answer:  count uvarint (0 or 1), tag 0 uvarint, size uvarint,
#   nodes COMPACT_ARRAY:  node id i32, host COMPACT_STRING, port i32, rack COMPACT_STRING (nullable), tags

# Where these nodes are, for clients of the connection's listener: the whole section of tagged fields. `leaders`:
# kbroker.log.leaders.Leaders.
cdef bytes node_endpoints(object leaders, set node_ids, object listener)
