"""Connections as upper layers see them."""

from libc.stdint cimport int64_t

from kbroker._fast.base.kafka cimport API_PRODUCE


cdef class Connection:
    @property
    def closed(self) -> bool:
        return self.channel == NULL

    @property
    def unsent_bytes(self) -> int:
        """What the socket has not taken of complete answers. Any thread."""
        return 0 if self.channel == NULL else self.channel.output_bytes

    @property
    def is_quiet(self) -> bool:
        """No request is in progress, and every answer is sent. Any thread."""
        return self.channel == NULL or (self.channel.in_flight == 0 and self.channel.output_bytes == 0)

    def open_gate_until(self, int64_t monotonic_ms) -> None:
        """From then on the connection closes on any request but ApiVersions and SASL's. In a turn of the reactor.

        With the largest int64 the gate stays open, as at the start.
        """
        if self.channel != NULL:
            self.channel.gate_closes_ms = monotonic_ms

    cdef int append(self, Request request) except -1:
        """One more request in progress."""
        request.connection = self
        if self.tail is None:
            self.head = request
        else:
            self.tail.next = request
        self.tail = request
        self.channel.in_flight += 1
        return 0

    cdef bint has_produce_to_append(self) noexcept:
        """Whether it must stay when its peer has closed: what was received counts.

        Not for a Produce that waits for space in the log: that would hold memory for a client that is gone.
        """
        cdef Channel* ch = self.channel
        return (
            ch.reason == NULL
            and not ch.close_when_sent
            and ch.in_flight > 0
            and self.tail is not None
            and self.tail.api_key == API_PRODUCE
            and not self.tail.stalled
            and (self.tail.blocking or ch.first != NULL)
        )
