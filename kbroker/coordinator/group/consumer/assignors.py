"""The server-side assignors of consumer groups, by name (KIP-848)."""

from __future__ import annotations

from kbroker.coordinator.group.assignor import Assignor
from kbroker.coordinator.group.consumer.range_assignor import assign_range
from kbroker.coordinator.group.uniform_assignor import assign_uniform
from kbroker.errors import ErrorCode, KafkaError

# The first one is the default.
ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
DEFAULT_ASSIGNOR = next(iter(ASSIGNORS))


def check_assignor(name: str) -> None:
    """Raises UNSUPPORTED_ASSIGNOR for a name that is not served."""
    if name not in ASSIGNORS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {name} is not supported. Supported assignors: {', '.join(ASSIGNORS)}.",
        )
