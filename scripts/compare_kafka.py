"""Prints what differs between kbroker and the Kafka release whose jars are in .tools/kafka, or in the folder given.

API keys, versions and fields, error codes, configs (type, default, and which values are taken), feature levels, record
schemas: one line for each difference. Exit code 0 where there is none, 1 otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kbroker.cluster.broker_config_table import BROKER_CONFIGS
from kbroker.cluster.group_configs import GROUP_CONFIGS
from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.features import FEATURES
from kbroker.protocol import api_keys
from kbroker.protocol.fields import BOOL, PRIVATE_TAG, UINT32, Field, Message, Struct, WireType
from kbroker.topic_config import TOPIC_CONFIGS, ConfigDef

JARS = Path(__file__).parents[1] / ".tools/kafka"
PROGRAM = Path(__file__).with_name("ReleaseTables.java")
JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8")
TIMEOUT_SECONDS = 90.0
RECORD_MODULES = {
    "records": "group",
    "consumer_group_records": "group",
    "share_group_records": "group",
    "share_state_records": "share",
}
NUMBERS = (
    -(2**63) - 1, -(2**63), -(2**31) - 1, -(2**31), -131073, -131072, -3, -2, -1, 0, 1, 2, 3, 4, 9, 10, 13, 14, 17, 18,
    22, 23, 1023, 1024, 2000, 10_000, 524_287, 524_288, 2**20 - 1, 2**20, 2**31 - 1, 2**31, 2**63 - 1, 2**63,
)  # fmt: skip
TEXTS = ("", " ", "true", "FALSE", "yes", "1.5", "0.5", "1e3", "nan", "-0.1", "1.1", " 7 ", "+7", "0x10")
WORDS = (
    "delete", "compact", "compact,delete", "compact, compact", "delete,", "zstd", "gzip", "uncompressed", "none", "lzo",
    "producer", "CreateTime", "createtime", "LogAppendTime", "0:1", "0:1,1:2", "*", "none,0:1", "0", "0:a", "uniform",
    "bidirectional", "BIDIRECTIONAL", "upgrade",
)  # fmt: skip
PROBES: tuple[str, ...] = (*map(str, NUMBERS), *TEXTS, *WORDS)
"""What each config is asked about."""

Row = dict[str, Any]
Tables = dict[str, dict[str, Row]]
"""Section, name, attribute."""


def release_tables(jars: Path = JARS) -> Tables:
    """What the release knows. Raises CalledProcessError with what Java printed."""
    command = ["java", *JVM, "-cp", f"{jars}/*", str(PROGRAM)]
    text = "".join(f"{probe}\n" for probe in PROBES)
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS, check=True)
    found: Tables = json.loads(done.stdout)
    return found


def kbroker_tables() -> Tables:
    """What kbroker knows, share groups included."""
    return {
        "api": dict(_apis()),
        "error": {code.name: {"code": int(code)} for code in ErrorCode},
        "topic config": _configs(TOPIC_CONFIGS),
        "group config": _configs(GROUP_CONFIGS),
        "broker config": _configs(BROKER_CONFIGS),
        "feature": {each.name: {"levels": [each.lowest, each.highest]} for each in FEATURES},
        "record": dict(_records()),
    }


def _apis() -> Iterator[tuple[str, Row]]:
    listed = {key: [first, last] for key, first, last in api_keys.api_versions_for_response(share_groups=True)}
    for key in api_keys.ApiKey:
        row: Row = {"key": int(key), "versions": listed.get(key)}
        for kind, message in (
            ("request", api_keys.request_class(key)),
            ("response", api_keys.response_class(key)),
        ):
            for version in range(message.VERSIONS.first, message.VERSIONS.last + 1):
                row[f"{kind} v{version}"] = fields(message, version)
        yield key.title, row


def fields(message: type[Message], version: int) -> dict[str, str]:
    """Type by path: "topics[].name"."""
    return dict(_walk("", message, version, version in message.FLEXIBLE))


def _walk(path: str, struct: type[Struct], version: int, flexible: bool) -> Iterator[tuple[str, str]]:
    if flexible:
        yield f"{path}(tags)", ""
    for field in struct.__fields__:
        if version not in field.versions or (field.tag or 0) >= PRIVATE_TAG:
            continue
        name = f"{path}{field.name}{'[]' if field.array else ''}"
        null = " or null" if version in field.nullable else ""
        tag = f" tag {field.tag}" if version in field.tagged else ""
        yield name, _kind(field) + null + tag
        if not isinstance(field.type, WireType):
            yield from _walk(f"{name}.", field.type, version, flexible)


def _kind(field: Field) -> str:
    if not isinstance(field.type, WireType):
        return "struct"
    return {BOOL: "boolean", UINT32: "unsigned_int32"}.get(field.type, field.type.name)


def _configs(table: Mapping[str, ConfigDef]) -> dict[str, Row]:
    return {
        definition.name: {
            "type": definition.type.name,
            "default": definition.default,
            "takes": [text for text in PROBES if takes(definition, text)],
        }
        for definition in table.values()
        if not definition.hidden and not definition.name.startswith("kbroker.")
    }


def takes(definition: ConfigDef, text: str) -> bool:
    """Whether kbroker takes a value."""
    try:
        definition.parse(text)
    except KafkaError:
        return False
    return True


def _records() -> Iterator[tuple[str, Row]]:
    for module, coordinator in RECORD_MODULES.items():
        for name, message in vars(import_module(f"kbroker.protocol.{module}")).items():
            if not isinstance(message, type) or not issubclass(message, Message) or not name.endswith(("Key", "Value")):
                continue
            title = f"{'transaction' if name.startswith('Transaction') else coordinator} {name}"
            versions = message.VERSIONS
            if name.endswith("Key"):
                yield title, {"type": versions.last, "fields": fields(message, versions.last)}
            else:
                yield title, {f"fields v{each}": fields(message, each) for each in range(versions.last + 1)}


def differences(ours: Tables, theirs: Tables) -> Iterator[str]:
    """One line for each difference."""
    for section, theirs_by_name in theirs.items():
        ours_by_name = ours.get(section, {})
        for name in sorted(theirs_by_name.keys() | ours_by_name.keys()):
            title = f"{section} {name}"
            if name not in ours_by_name:
                yield f"{title}: not in kbroker: {_brief(theirs_by_name[name])}"
            elif name not in theirs_by_name:
                yield f"{title}: only in kbroker"
            else:
                yield from _row_differences(title, ours_by_name[name], theirs_by_name[name])


def _brief(row: Row) -> str:
    return ", ".join(f"{key} {value}" for key, value in row.items() if key != "takes" and not isinstance(value, dict))


def _row_differences(title: str, ours: Row, theirs: Row) -> Iterator[str]:
    """What kbroker cannot tell, such as the text of a validator, is no difference."""
    for key in sorted(ours.keys() | theirs.keys()):
        here, there = ours.get(key), theirs.get(key)
        if key not in theirs:
            yield f"{title}: {key}: only in kbroker"
        elif key not in ours:
            if isinstance(there, dict):
                yield f"{title}: {key}: not in kbroker"
        elif key == "takes":
            yield from _taken_differences(title, here, there, theirs["validator"])
        elif isinstance(there, dict):
            for name in sorted(here.keys() | there.keys()):
                if here.get(name) != there.get(name):
                    yield f"{title}: {key}: {name}: kbroker {here.get(name)}, Kafka {there.get(name)}"
        elif here != there:
            yield f"{title}: {key}: kbroker {here}, Kafka {there}"


def _taken_differences(title: str, ours: Sequence[str], theirs: Sequence[str], rule: str | None) -> Iterator[str]:
    for side, more in (("kbroker", set(ours) - set(theirs)), ("Kafka", set(theirs) - set(ours))):
        if more:
            yield f"{title}: only {side} takes {sorted(more)}; Kafka's rule: {rule}"


def main(arguments: Sequence[str]) -> int:
    jars = Path(arguments[0]) if arguments else JARS
    found = list(differences(kbroker_tables(), release_tables(jars)))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
