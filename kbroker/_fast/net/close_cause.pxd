# Why a connection closes, as the metrics count it. What the log says of it is Channel.reason.

cdef enum CloseCause:
    CLOSE_NONE = 0          # it does not
    CLOSED_BY_CLIENT        # which ended it, or went away
    CLOSED_IDLE
    CLOSED_NO_PROGRESS      # the client neither sends the rest of a request nor reads its answers
    CLOSED_PROTOCOL_ERROR   # what it sent is no request that is served
    CLOSED_AT_GATE          # a request before authentication
    CLOSED_LIMIT            # more are open than max.connections
    CLOSED_PRODUCE_FAILED   # without acknowledgement: the client learns of it by this only, as from Kafka
    CLOSED_SEND_FAILED
    CLOSED_NO_MEMORY
    CLOSED_INTERNAL_ERROR
    CLOSED_BROKER_STOP
    CLOSE_CAUSES
