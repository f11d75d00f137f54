from collections.abc import Mapping
from concurrent.futures import Future

class Verifications:
    @property
    def disabled(self) -> bool: ...
    @property
    def places(self) -> list[int]: ...

class Answer:
    def __call__(self, future: Future[Mapping[tuple[str, int], int]]) -> None: ...
