from collections import deque
from collections.abc import Iterable
from typing import Any

class AnswerMemory:
    limit: int
    used: int
    in_progress: int
    waiting: deque[Any]
    def __init__(self, limit: int, long_answers: Iterable[int] = ()) -> None: ...
