from kbroker._fast.net.acceptor import Acceptor
from kbroker._fast.net.answer_memory import AnswerMemory

class Connections(Acceptor):
    idle_ms: int
    no_progress_ms: int
    connections_opened: int
    answers: AnswerMemory
    @property
    def closed_by_cause(self) -> dict[str, int]: ...
    @property
    def starved_ms(self) -> int: ...
