"""Shell completion: the scripts, and what is offered without a broker."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from click.shell_completion import CompletionItem, get_completion_class
from click.testing import CliRunner

from kbroker.cli.main import cli
from kbroker.protocol.apis.cluster.k03_metadata import MetadataResponseTopic
from kbroker.protocol.apis.groups.k16_list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def offered(line: str, incomplete: str = "") -> list[CompletionItem]:
    made = get_completion_class("bash")
    assert made is not None
    return made(cli, {}, "kbroker", "_KBROKER_COMPLETE").get_completions(line.split(), incomplete)


def values(line: str, incomplete: str = "") -> list[str]:
    return [item.value for item in offered(line, incomplete)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_asks_kbroker(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0, result.output
    assert "_KBROKER_COMPLETE" in result.stdout
    assert f"{shell}_complete" in result.stdout


@pytest.mark.parametrize("arguments", [[], ["tcsh"], ["bash", "zsh"], [""]])
def test_another_shell_is_a_usage_error(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli, ["completion", *arguments]).exit_code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_takes_the_script() -> None:
    script = CliRunner().invoke(cli, ["completion", "bash"]).stdout
    ran = subprocess.run(["bash", "--norc", "-c", f"{script}\ncomplete -p kbroker"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "_kbroker_completion" in ran.stdout


def test_commands_and_options_are_offered() -> None:
    assert values("", "top") == ["topic"]
    assert "create" in values("topic", "c")
    assert values("serve", "--data") == ["--data-dir"]


def test_nothing_is_offered_below_a_command_that_does_not_exist() -> None:
    assert values("topik", "") == values("", "")
    assert values("topic no-such", "x") == []


def test_files_are_left_to_the_shell() -> None:
    assert [item.type for item in offered("serve --config", "x")] == ["file"]


@pytest.mark.parametrize("line", ["topic describe", "topics delete", "group describe", "consume", "produce"])
def test_no_broker_is_no_names(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBROKER_BOOTSTRAP", "127.0.0.1:1")
    assert values(line) == []


def test_a_bootstrap_that_is_no_address_is_no_names() -> None:
    assert values("topic describe --bootstrap nowhere") == []


class Cluster:
    """Takes the place of a ClusterClient."""

    def __init__(self, *args: object) -> None:
        pass

    def topics(self) -> list[MetadataResponseTopic]:
        names = {"payments": False, "orders": False, "__consumer_offsets": True}
        return [MetadataResponseTopic(name=name, is_internal=internal) for name, internal in names.items()]

    def brokers(self) -> dict[int, None]:
        return {1: None, 2: None}

    def broker(self, node_id: int, request: ListGroupsRequest) -> ListGroupsResponse:
        return ListGroupsResponse(groups=[ListedGroup(group_id=f"group-{node_id}")])


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("topic describe", ["orders", "payments"]),
        ("topics delete", ["orders", "payments"]),
        ("consume", ["orders", "payments"]),
        ("group describe", ["group-1", "group-2"]),
        ("consumer-groups delete", ["group-1", "group-2"]),
        ("topic create", []),
        ("config describe topic", ["orders", "payments"]),
        ("configs alter topics", ["orders", "payments"]),
        ("config describe group", ["group-1", "group-2"]),
        ("config describe broker", []),
        ("config describe nothing", []),
    ],
)
def test_names_of_the_right_kind_are_offered(line: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.cli.offered_names.ClusterClient", Cluster)
    monkeypatch.setattr("kbroker.cli.offered_names.ANSWER_SECONDS", 60.0)
    assert values(line) == names
    assert values(line, "o") == [name for name in names if name.startswith("o")]
