"""How a start gets its number (cluster protocol §2)."""

from __future__ import annotations

from kbroker.cluster.protocol.messages import ReadyRequest, RegisterAnswer, RegisterRequest
from kbroker.cluster.protocol.registration import (
    Description,
    Known,
    Refused,
    SavedIdentity,
    Start,
    Wait,
    judge_registration,
)
from kbroker.storage.manifest.leadership import Registration
from tests.unit.cluster.protocol.protocol_fakes import NOWHERE, Image, led_image, registration


def sent(saved: int, *nonces: str, place: str = "host1", directory_id: str = "d1", node_id: int = 1) -> RegisterRequest:
    return RegisterRequest(directory_id, saved, nonces, node_id, place, "", "", "", NOWHERE)


def judged(image: Image, request: RegisterRequest, alive: bool = False) -> Registration | Known | Refused | Wait:
    return judge_registration(request, image, 9, lambda number: alive)


def test_first_start_of_a_directory_gets_the_next_number() -> None:
    answer = judged(Image(), sent(0, "n"))
    assert isinstance(answer, Registration)
    assert (answer.number, answer.directory_id, answer.nonce, answer.fences) == (9, "d1", "n", True)


def test_request_that_comes_again_gets_the_same_number() -> None:
    assert judged(Image().add(registrations=(registration(1),)), sent(0, "n1")) == Known(1)


def test_next_start_of_a_directory_gets_another_number() -> None:
    assert isinstance(judged(led_image(), sent(1, "new")), Registration)


def test_directory_whose_number_is_not_the_ledgers_is_refused() -> None:
    for saved in (0, 7):
        refused = judged(led_image(), sent(saved, "new"))
        assert isinstance(refused, Refused)
        assert "copy" in refused.reason


def test_directory_that_the_ledger_does_not_know_but_that_ran_is_refused() -> None:
    assert isinstance(judged(Image(), sent(3, "new")), Refused)


def test_start_after_one_that_saved_no_number_is_accepted_unless_that_number_led() -> None:
    unused = Image().add(registrations=(registration(1),))
    assert isinstance(judged(unused, sent(0, "n1", "new")), Registration)
    assert isinstance(judged(led_image(), sent(0, "n1", "new")), Refused)


def test_directory_at_another_place_waits_for_the_lease_of_its_number() -> None:
    request = sent(1, "new", place="elsewhere")
    assert judged(led_image(), request, alive=True) == Wait()
    assert isinstance(judged(led_image(), request), Registration)


def test_directory_at_its_place_waits_for_no_lease() -> None:
    assert isinstance(judged(led_image(), sent(1, "new"), alive=True), Registration)


def test_node_id_of_a_live_broker_is_refused_to_another_directory() -> None:
    request = sent(0, "new", directory_id="other")
    refused = judged(led_image(), request, alive=True)
    assert isinstance(refused, Refused)
    assert "node id 1 is in use" in refused.reason
    assert isinstance(judged(led_image(), request), Registration)


def start(saved: list[SavedIdentity]) -> Start:
    return Start(SavedIdentity("d1", 4, ("old",)), "new", Description(1, "host1"), saved.append)


def test_start_saves_its_nonce_before_it_sends_it() -> None:
    saved: list[SavedIdentity] = []
    request = start(saved).request(NOWHERE)
    assert saved == [SavedIdentity("d1", 4, ("old", "new"))]
    assert isinstance(request, RegisterRequest)
    assert (request.saved_number, request.nonces, request.nonce) == (4, ("old", "new"), "new")


def test_start_says_that_it_is_ready_once_its_number_is_saved() -> None:
    saved: list[SavedIdentity] = []
    begun = start(saved)
    begun.answer(RegisterAnswer("another", 8))
    assert begun.number == 0
    begun.answer(RegisterAnswer("new", 9))
    assert saved[-1] == SavedIdentity("d1", 9)
    assert begun.request(NOWHERE) == ReadyRequest(9)
    begun.answer(RegisterAnswer("new", 10))
    assert begun.number == 9


def test_refused_start_gets_no_number() -> None:
    begun = start([])
    begun.answer(RegisterAnswer("new", 0, "a copy"))
    begun.answer(RegisterAnswer("new", 9))
    assert (begun.refusal, begun.number) == ("a copy", 0)
