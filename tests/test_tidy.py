"""The repository's shape, checked: what import-linter, ruff and mypy do not see."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from kbroker.handlers.registry import MODULES, SHARE_GROUP_MODULES
from kbroker.protocol.api_keys import SERVED, ApiKey

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kbroker"
FAST = PACKAGE / "_fast"

FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
LONG_FILES: dict[str, str] = {}  # path: why it is longer; for a split in progress

BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc", "base_utils"}
# What can be waited for with a time-out, and the calls that do.
WAITED_FOR = {"Event", "Condition", "Semaphore", "Barrier", "poll", "epoll", "DefaultSelector"}
WAITS = {"wait", "wait_for", "acquire", "poll", "select"}
CLOCK_FUNCTIONS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"}
READS_THE_TIME = {"kbroker/clock.py"}
# Compiled code that reads the clocks itself: the monotonic one in one place, and that of records' time stamps.
READS_THE_TIME_FAST = {f"kbroker/_fast/{name}" for name in ("net/poller.pyx", "base/pthread.pxd")}
PRINTS = {"kbroker/app/process.py": 1}  # the line that says it is ready
PAUSES = {"tests/integration/until.py": 1}  # where polling is written
PRIVATE_USES_MAX = 150  # of other objects' private attributes in the tests; only goes down
PLANTS_BUGS = {"tests/simulation/test_planted_bugs.py"}  # which changes what is private
PUBLIC = {"_asdict", "_exit", "_fast", "_fields", "_make", "_replace"}  # the standard library's, and a package of ours
# C structures and code below Python; nothing in them is called from Python.
NO_PYTHON_API = {
    "net.channel", "net.epoll", "net.receive", "net.send", "net.sender", "net.transport",
    "partition.index_lists", "partition.transactions", "records.compact_output", "requests.current_leader",
    "requests.fetch_answer", "requests.produce_judge", "wal.batches",
}  # fmt: skip
# The packages of compiled modules: each imports only those before it, ...
COMPILED_PACKAGES = ("base", "records", "wal", "partition", "manifest", "net", "requests")
# ... and of the rest of kbroker only these.
BELOW_COMPILED = {"kbroker.errors", "kbroker.lazy_numpy", "kbroker.limits", "kbroker.types"}
FORMATS = {
    "kbroker/storage/formats/object_keys.py": "keys",
    "kbroker/storage/formats/klix.py": "klix",
    "kbroker/storage/formats/pack.py": "pack",
    "kbroker/storage/ledger/numbered_log_format.py": "numbered-log",
    "kbroker/storage/manifest/record.py": "manifest",
    "kbroker/storage/ledger/claim_format.py": "claims",
    "kbroker/storage/rewrite/swap_proposal.py": "proposals",
    "kbroker/cluster/records.py": "metadata",
    "kbroker/exchange/kafka_log/log_segment.py": "kafka-log",
    "kbroker/exchange/bucket/klite_metadata.py": "klite-bucket",
    "kbroker/storage/formats/kfs.py": "kfs",
    "kbroker/_fast/wal/format.pxd": "wal",
    "kbroker/_fast/records/record_batch.pxd": "record-batch",
}

DECISION_WORDS_MAX = 300
DECISION_PARTS = ("**Context.**", "**Decision.**", "**Consequences.**", "**What would change it.**")


def tracked(*suffixes: str) -> list[Path]:
    """The repository's files: what git has or would add, generated files not among them."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=False
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listing.stdout.decode().split("\0") if name.endswith(suffixes or ("",))]
    return sorted(path for path in paths if path.is_file())


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed Python file."""
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def library(*suffixes: str) -> Iterator[tuple[str, str]]:
    """(path from the root, text) of the package's files."""
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in suffixes:
            yield name_of(path), path.read_text()


def calls(text: str) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of everything a Python file calls or names with a dot."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}", node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node.lineno


def test_files_are_not_long() -> None:
    lengths = {name_of(p): p.read_text().count("\n") for p in tracked(".py", ".pyx", ".pxd", ".h", ".c")}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX and name not in LONG_FILES} == {}
    assert [name for name in LONG_FILES if lengths.get(name, 0) <= FILE_LINES_MAX] == []


def test_functions_fit_a_screen() -> None:
    long = []
    for path in tracked(".py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long.append(f"{name_of(path)}: {node.name}: {lines} lines")
    assert long == []


def test_no_file_is_named_for_nothing() -> None:
    assert [name_of(path) for path in tracked() if path.stem in BANNED_NAMES] == []


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in tracked(".py") if path.name.startswith("test_") and "tests" in path.parts]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_time_comes_from_the_clock() -> None:
    found = []
    for name, text in library(".py"):
        if name in READS_THE_TIME:
            continue
        if any(isinstance(node, ast.ImportFrom) and node.module == "time" for node in ast.walk(ast.parse(text))):
            found.append(f"{name}: from time import")
        for call, line in calls(text):
            module, _, function = call.partition(".")
            if (module == "time" and function in CLOCK_FUNCTIONS) or call in ("datetime.now", "datetime.utcnow"):
                found.append(f"{name}:{line}: {call}")
    for name, text in library(".pyx", ".pxd"):
        if "clock_gettime" in text and name not in READS_THE_TIME_FAST:
            found.append(f"{name}: clock_gettime")
        if re.search(r"^\s*(import time|from time import)\b", text, re.MULTILINE):
            found.append(f"{name}: time")
    assert found == []


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a chain of names; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{owner}.{node.attr}" if (owner := dotted(node.value)) else node.attr
    return ""


def is_pause(call: ast.Call) -> bool:
    """Whether a call only lets time pass: nothing can end it early."""
    name = dotted(call.func)
    if name in ("sleep", "time.sleep"):
        return True
    if name == "asyncio.sleep":
        return not (isinstance(call.args[0], ast.Constant) and call.args[0].value == 0)
    if name == "select.select":
        return all(isinstance(argument, ast.List | ast.Tuple) and not argument.elts for argument in call.args[:3])
    if name.startswith("subprocess.") or name == "os.system":
        return any(
            isinstance(node, ast.Constant) and str(node.value).split()[:1] == ["sleep"] for node in ast.walk(call)
        )
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):  # as Event().wait(seconds)
        return call.func.attr in WAITS and dotted(call.func.value.func).rpartition(".")[2] in WAITED_FOR
    return False


def events_only_waited_for(tree: ast.Module) -> Iterator[int]:
    """Lines that make an Event of which the file does nothing but wait for it."""
    made = {}
    waits: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if dotted(node.value.func).rpartition(".")[2] == "Event":
                made |= {dotted(target).rpartition(".")[2]: node.lineno for target in targets}
        elif isinstance(node, ast.Attribute) and node.attr == "wait":
            waits.add(node.value)
    used = {
        dotted(node).rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and node not in waits
    }
    yield from (line for name, line in made.items() if name and name not in used)


def test_tests_do_not_pause() -> None:
    found = {}
    for path in tracked(".py"):
        if path.is_relative_to(ROOT / "tests"):
            tree = tree_of(path)
            lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and is_pause(node)]
            lines += events_only_waited_for(tree)
            if len(lines) > PAUSES.get(name_of(path), 0):
                found[name_of(path)] = sorted(lines)
    assert found == {}


@pytest.mark.parametrize(
    ("source", "pauses"),
    [
        ("time.sleep(1)", True),
        ("threading.Event().wait(1)", True),
        ("threading.Condition().wait_for(holds, 1)", True),
        ("select.select([], [], [], 1)", True),
        ("select.select([descriptor], [], [], 1)", False),
        ("select.poll().poll(1)", True),
        ("asyncio.sleep(1)", True),
        ("asyncio.sleep(0)", False),
        ("subprocess.run(['sleep', '1'])", True),
        ("subprocess.run('sleep 1', shell=True)", True),
        ("done.wait(1)", False),
        ("process.wait(1)", False),
    ],
)
def test_a_pause_is_found_by_whatever_name(source: str, pauses: bool) -> None:
    assert any(is_pause(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)) is pauses


def test_an_event_that_is_never_set_is_a_pause() -> None:
    waited, used = "done = Event()\ndone.wait(1)", "done = Event()\nstart(done)\ndone.wait(1)"
    assert list(events_only_waited_for(ast.parse(waited))) == [1]
    assert list(events_only_waited_for(ast.parse(used))) == []


def private_uses(tree: ast.Module) -> Iterator[int]:
    """Lines that name a private attribute of an object whose class the file does not define."""
    own = set(PUBLIC)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node.value) == "self":
            own.add(node.attr)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and dotted(node.value) not in ("self", "cls"):
            name = node.attr
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("setattr") and len(node.args) > 1:
            name = getattr(node.args[1], "value", "")
        else:
            continue
        if re.match(r"_[a-z]", str(name)) and name not in own:
            yield node.lineno


def test_tests_use_private_attributes_ever_less() -> None:
    uses = {}
    for path in tracked(".py"):
        if path.is_relative_to(ROOT / "tests") and name_of(path) not in PLANTS_BUGS:
            uses[name_of(path)] = list(private_uses(tree_of(path)))
    assert sum(map(len, uses.values())) <= PRIVATE_USES_MAX, {name: lines for name, lines in uses.items() if lines}


def test_the_library_logs_and_does_not_print() -> None:
    printing = {}
    for name, text in library(".py"):
        if not name.startswith("kbroker/cli/") and (lines := [n for call, n in calls(text) if call == "print"]):
            printing[name] = len(lines)
    assert printing == PRINTS
    assert [name for name, text in library(".pyx") if re.search(r"^\s*print\(", text, re.MULTILINE)] == []


def compiled(suffix: str) -> set[str]:
    """Dotted names below kbroker._fast of its files with this suffix."""
    return {".".join(path.relative_to(FAST).with_suffix("").parts) for path in FAST.rglob(f"*{suffix}")}


def test_compiled_modules_have_stubs_and_stubs_their_modules() -> None:
    modules, stubs = compiled(".pyx"), compiled(".pyi")
    assert modules - stubs == NO_PYTHON_API
    assert stubs - modules == set()


@pytest.mark.parametrize("stub", sorted(compiled(".pyi")))
def test_stubs_name_what_there_is(stub: str) -> None:
    module = import_module(f"kbroker._fast.{stub}")
    missing = []
    for node in ast.parse((FAST / f"{stub.replace('.', '/')}.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef) and not hasattr(module, node.name):
            missing.append(node.name)
        elif isinstance(node, ast.ClassDef):
            found = getattr(module, node.name, None)
            if found is None:
                missing.append(node.name)
                continue
            missing += [
                f"{node.name}.{member.name}"
                for member in node.body
                if isinstance(member, ast.FunctionDef) and not hasattr(found, member.name)
            ]
    assert missing == []


def test_compiled_packages_import_one_way() -> None:
    """import-linter does not see compiled modules."""
    own = re.compile(r"^\s*(?:from|c?import)\s+(kbroker[\w.]*)(?:\s+c?import\s+(\w+))?", re.MULTILINE)
    foreign = re.compile(r"^\s*(?:from\s+(\w+)[\w.]*\s+cimport|cimport\s+(\w+))", re.MULTILINE)
    found = set()
    for name, text in library(".py", ".pyx", ".pxd"):
        file = name.removeprefix("kbroker/_fast/")
        package = file.partition("/")[0]
        if package not in COMPILED_PACKAGES or package == file:
            continue
        below = COMPILED_PACKAGES[: COMPILED_PACKAGES.index(package) + 1]
        for match in own.finditer(text):
            module = f"{match[1]}.{match[2]}" if match[1] in ("kbroker", "kbroker._fast") else match[1]
            if module not in BELOW_COMPILED and module.removeprefix("kbroker._fast.").partition(".")[0] not in below:
                found.add((file, module))
        for match in foreign.finditer(text):
            if (match[1] or match[2]) not in ("kbroker", "libc", "cpython", "posix", "cython"):
                found.add((file, match[1] or match[2]))
    assert found == set()


def imports(suffix: str, text: str) -> Iterator[tuple[str, str]]:
    """(module, name) of each import and cimport of the library, inside functions and for type checkers only too."""
    if suffix != ".py":
        for match in re.finditer(r"^\s*from (kbroker[\w.]*) c?import (\w+)?", text, re.MULTILINE):
            yield match[1], match[2] or ""
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kbroker"):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.startswith("kbroker"))


def test_files_do_not_import_in_circles() -> None:
    texts = [(".".join(Path(name).with_suffix("").parts), Path(name).suffix, text)
             for name, text in library(".py", ".pyx", ".pxd")]  # fmt: skip
    modules = {module.removesuffix(".__init__") for module, _, _ in texts}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for module, suffix, text in texts:
        for package, name in imports(suffix, text):
            target = f"{package}.{name}" if f"{package}.{name}" in modules else package
            graph[module.removesuffix(".__init__")].add(target)

    def reachable(start: str) -> set[str]:
        found: set[str] = set()
        ahead = set(graph[start])
        while ahead:
            module = ahead.pop()
            if module not in found:
                found.add(module)
                ahead |= graph.get(module, set())
        return found

    reach = {module: reachable(module) for module in modules}
    circles = {
        tuple(sorted(other for other in reach[module] if module in reach.get(other, ())))
        for module in modules
        if module in reach[module]
    }
    assert [circle for circle in circles if len(circle) > 1] == []


def test_only_a_transport_receives_from_and_sends_to_clients() -> None:
    system_call = re.compile(r"\b(recv|recvmsg|sendmsg|sendfile|writev)\(|MSG_PEEK")
    found = {name for name, text in library(".pyx", ".pxd") if "/_fast/net/" in name and system_call.search(text)}
    assert found == {"kbroker/_fast/net/transport.pyx"}


def served_versions(docstring: str) -> tuple[str, int, int, int] | None:
    """(name, key, lowest, highest version) as a handler's first line says them."""
    match = re.match(r"(\w+) \(key (\d+)\), versions? (\d+)(?:-(\d+))?[.:,]", docstring)
    return (match[1], int(match[2]), int(match[3]), int(match[4] or match[3])) if match else None


def test_handlers_say_which_versions_they_serve() -> None:
    for name in MODULES + SHARE_GROUP_MODULES:
        module = import_module(f"kbroker.handlers.{name}")
        handler = module.HANDLER
        expected = (ApiKey(handler.api_key).title, handler.api_key, handler.min_version, handler.max_version)
        assert served_versions(module.__doc__ or "") == expected, name
        assert "gaps:" in (module.__doc__ or "").lower(), name


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.FETCH])
def test_the_hot_paths_say_which_versions_they_serve(key: ApiKey) -> None:
    module = import_module(f"kbroker.handlers.{key.name.lower()}")
    assert served_versions(module.__doc__ or "") == (key.title, int(key), *SERVED[key])


def test_every_format_has_its_page() -> None:
    pages = {path.stem for path in (ROOT / "docs/formats").glob("*.md")}
    assert pages == set(FORMATS.values())
    for path, page in FORMATS.items():
        assert (ROOT / path).is_file(), path
        assert f"formats/{page}.md" in (ROOT / "docs/formats.md").read_text(), page
        assert f"{page}.md" in (ROOT / path).read_text(), f"{path} does not point to docs/formats/{page}.md"


def test_a_decision_page_is_one_screen() -> None:
    found = []
    for path in sorted((ROOT / "docs/decisions").glob("[0-9]*.md")):
        text = path.read_text()
        if (words := len(text.split())) > DECISION_WORDS_MAX:
            found.append(f"{path.name}: {words} words")
        found += [f"{path.name}: no {part}" for part in DECISION_PARTS if part not in text]
    assert found == []


def test_nothing_of_a_machine_is_in_the_repository() -> None:
    # Spelled so that this file does not match itself.
    machine = re.compile(r"(?<![\w.])/(?:wor[k]|roo[t]|hom[e]|Users)/\w|artifactor[y]|index-ur[l]|devp[i]")
    found = []
    for path in tracked():
        if path.suffix in (".so", ".png", ".jar", ".whl"):
            continue
        for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
            if machine.search(line):
                found.append(f"{name_of(path)}:{number}: {line.strip()[:100]}")
    assert found == []
