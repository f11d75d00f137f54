"""Who leads a partition instead, in answers of Produce and Fetch (KIP-951); the layout is in current_leader.pxd.

For the few answers that say NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH: plain Python objects.
"""


cdef bytes _uvarint(Py_ssize_t value):
    cdef bytes out = b""
    while value > 0x7f:
        out += bytes((value & 0x7f | 0x80,))
        value >>= 7
    return out + bytes((value,))


cdef bytes _string(str value):
    if value is None:
        return b"\x00"
    data = value.encode()
    return _uvarint(len(data) + 1) + data


cdef bytes node_endpoints(object leaders, set node_ids, object listener):
    nodes = [node for node in leaders.nodes(listener) if node.node_id in node_ids]
    if not nodes:
        return b"\x00"
    body = _uvarint(len(nodes) + 1)
    for node in nodes:
        body += node.node_id.to_bytes(4, "big", signed=True) + _string(node.host)
        body += node.port.to_bytes(4, "big") + _string(node.rack) + b"\x00"
    return b"\x01\x00" + _uvarint(len(body)) + body
