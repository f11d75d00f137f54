"""DescribeClientQuotas (key 48), versions 0-1: there are no quotas (KIP-546).

Behaviour: a filter that Kafka takes matches nothing; one that it does not take is INVALID_REQUEST (42), or
UNSUPPORTED_VERSION (35) for a type of entity that quotas do not have.

Versions: v1 flexible.

Gaps: no quotas; AlterClientQuotas is not served.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.security.k48_describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

IP = "ip"
ENTITY_TYPES = ("user", "client-id", IP)
EXACT, DEFAULT, SPECIFIED = range(3)  # match types
MATCH_NAMES = {DEFAULT: "MATCH_TYPE_DEFAULT", SPECIFIED: "MATCH_TYPE_SPECIFIED"}


def handle(context: Context, info: RequestInfo, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    """No entries, or the error of the filter."""
    try:
        _check(request.components)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    return DescribeClientQuotasResponse(entries=[])


def _check(components: Iterable[ComponentData]) -> None:
    """Raises KafkaError for the first invalid component, else for an invalid combination."""
    seen: set[str] = set()
    for component in components:
        _check_component(component, seen)
        seen.add(component.entity_type)
    if IP in seen and len(seen) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component.",
        )


def _check_component(component: ComponentData, seen: set[str]) -> None:
    kind = component.entity_type
    if kind == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
    if kind in seen:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter.")
    if kind not in ENTITY_TYPES:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
    if component.match_type == EXACT:
        if component.match is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null."
            )
    elif (name := MATCH_NAMES.get(component.match_type)) is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")
    elif component.match is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Request specified {name}, but also specified a match string.")


HANDLER = Handler(48, 0, 1, handle, inline=True)
