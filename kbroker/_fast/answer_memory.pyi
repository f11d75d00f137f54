from collections.abc import Iterable

class AnswerMemory:
    limit: int
    used: int
    in_progress: int
    def __init__(self, limit: int, long_answers: Iterable[int] = ()) -> None: ...
