"""``kbroker doctor``: checks what a broker with these settings needs, and says what to change.

Exit codes: 0 nothing fails (there may be warnings), 1 something fails, 2 the settings are wrong.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import click

from kbroker.app.config import Settings
from kbroker.app.config_sources import DEFAULT
from kbroker.cli.broker_options import BrokerCommand, with_settings
from kbroker.cli.doctor.finding import Finding, Status, ok, warning
from kbroker.cli.doctor.machine import check_machine
from kbroker.cli.doctor.network import check_network
from kbroker.cli.doctor.store import check_store
from kbroker.cli.output import Output
from kbroker.clock import SystemClock

STATUS_WIDTH = max(len(status.value) for status in Status)
CHECK_WIDTH = len("store-if-none-match")


@click.command(cls=BrokerCommand)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line: check, status, message, advice")
@with_settings
def command(settings: Settings, as_json: bool) -> None:
    """Checks what a broker needs, and says what to change.

    It looks at settings, ports, data directory, limits, memory and clock, and tries each operation on the object store.
    Give it the options of `kbroker serve`. A broker may run meanwhile; nothing is left behind. Exit code 1 if something
    fails that a broker needs.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was written to the store is deleted first
    output = Output(as_json)
    counts = dict.fromkeys(Status, 0)
    for finding in _findings(settings):
        counts[finding.status] += 1
        output.done(_line(finding), check=finding.check, status=finding.status.value, message=finding.message,
                    advice=finding.advice)  # fmt: skip
    output.note(", ".join(f"{count} {status.value}" for status, count in counts.items()))
    if counts[Status.FAILED]:
        sys.exit(1)


def _findings(settings: Settings) -> Iterator[Finding]:
    clock = SystemClock()
    given = sum(setting.source != DEFAULT for setting in settings.options.values()) + len(settings.kafka)
    yield ok("settings", f"{given} given (kbroker serve --print-config lists all)")
    for text in settings.warnings:
        yield warning("settings", text, "correct or remove it")
    yield from check_network(settings.config)
    yield from check_machine(settings.config, clock)
    yield from check_store(settings.config, clock)


def _line(finding: Finding) -> str:
    advice = f"; {finding.advice}" if finding.advice else ""
    return f"{finding.status.value:{STATUS_WIDTH}}  {finding.check:{CHECK_WIDTH}}  {finding.message}{advice}"
