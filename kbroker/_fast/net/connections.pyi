from kbroker._fast.net.acceptor import Acceptor
from kbroker._fast.net.answer_memory import AnswerMemory

class Connections(Acceptor):
    idle_ms: int
    no_progress_ms: int
    connections_opened: int
    connections_closed: int
    answers: AnswerMemory
