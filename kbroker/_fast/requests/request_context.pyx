"""What the broker gives to the requests that are served below Python."""


cdef class RequestContext:
    def __init__(self, sessions, *, topics_by_name, topics_by_id, leaders, cold_reader=None, executor=None,
                 fetch_bytes_max, fetch_near_bytes):
        self.sessions = sessions
        self.topics_by_name = topics_by_name
        self.topics_by_id = topics_by_id
        self.leaders = leaders
        self.cold_reader = cold_reader
        self.executor = executor
        self.fetch_bytes_max = fetch_bytes_max
        self.fetch_near_bytes = fetch_near_bytes
