"""``cluster features`` and ``upgrade``: levels of features, and kbroker.version of a cluster that is upgraded."""

from __future__ import annotations

from typing import Any

import click

from kbroker import __version__
from kbroker.cli.failure import CommandFailed, check
from kbroker.cli.numbers import Integer
from kbroker.cli.output import Column
from kbroker.cli.session import Session, with_session
from kbroker.client.cluster_client import ClusterClient
from kbroker.cluster.features import DEFAULT, FEATURE, LEVEL_MAX, UpgradeType
from kbroker.protocol.apis.cluster.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.apis.cluster.k57_update_features import FeatureUpdateKey, UpdateFeaturesRequest

TIMEOUT_MS = 30_000
COLUMNS = (
    Column("feature", "FEATURE"),
    Column("level", "LEVEL"),
    Column("lowest", "LOWEST"),
    Column("highest", "HIGHEST"),
)


def finalized_levels(client: ClusterClient) -> dict[str, int]:
    """The finalized level of each feature."""
    return {each["feature"]: each["level"] for each in _features(client) if each["level"] is not None}


def _features(client: ClusterClient) -> list[dict[str, Any]]:
    """A row for each feature; `level` is None where none is finalized."""
    request = ApiVersionsRequest(client_software_name="kbroker", client_software_version=__version__)
    found: ApiVersionsResponse = client.any_broker(request)
    levels = {each.name: each.max_version_level for each in found.finalized_features}
    ranges = {each.name: (each.min_version, each.max_version) for each in found.supported_features}
    rows = []
    for name in sorted(levels.keys() | ranges.keys()):
        lowest, highest = ranges.get(name, (None, None))
        rows.append({"feature": name, "level": levels.get(name), "lowest": lowest, "highest": highest})
    return rows


@click.command()
@with_session
def features(session: Session) -> None:
    """The finalized level of each feature, and the levels that the broker supports."""
    session.output.rows(_features(session.client), COLUMNS, "the broker lists no features")


@click.command()
@click.option("--level", type=Integer(1, LEVEL_MAX), help="the new level (default: that of a new cluster)")
@click.option("--dry-run", is_flag=True, help="only ask whether it would be granted")
@with_session
def upgrade(session: Session, level: int | None, dry_run: bool) -> None:
    """Finalizes a level of kbroker.version. Earlier releases that do not know it cannot open the cluster any more."""
    row = next((row for row in _features(session.client) if row["feature"] == FEATURE), None)
    if row is None:
        raise CommandFailed(f"the broker does not have the feature {FEATURE}")
    before = row["level"]
    wanted = max(DEFAULT, before or 0) if level is None else level
    update = FeatureUpdateKey(feature=FEATURE, max_version_level=wanted, upgrade_type=UpgradeType.UPGRADE)
    request = UpdateFeaturesRequest(feature_updates=[update], timeout_ms=TIMEOUT_MS, validate_only=dry_run)
    response = session.client.controller(request, lambda response: [response.error_code])
    check(response.error_code, FEATURE, response.error_message)
    values = {"feature": FEATURE, "previous_level": before, "level": wanted, "dry_run": dry_run}
    if wanted == before:
        session.output.done(f"{FEATURE} is at {wanted} already", **values)
    else:
        said = "could be upgraded" if dry_run else "was upgraded"
        session.output.done(f"{FEATURE} {said} from {before} to {wanted}", **values)
