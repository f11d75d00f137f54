class FetchSession:
    session_id: int
    epoch: int
    uses_topic_ids: bool
    def __len__(self) -> int: ...

class FetchSessions:
    slots_max: int
    def __init__(self, slots_max: int = 1000) -> None: ...
    def __len__(self) -> int: ...
