"""What the coordinators of a cluster know of transactional ids."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.cli.failure import CommandFailed, check, unknown
from kbroker.client.cluster_client import ClusterClient, CoordinatorKind
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.transactions.k65_describe_transactions import DescribeTransactionsRequest, TransactionState
from kbroker.protocol.apis.transactions.k66_list_transactions import ListTransactionsRequest
from kbroker.protocol.apis.transactions.k66_list_transactions import TransactionState as ListedTransaction


def listed_transactions(client: ClusterClient, request: ListTransactionsRequest) -> list[tuple[int, ListedTransaction]]:
    """The transactions of every broker that pass the request's filters, with the broker that coordinates each."""
    found = []
    for node_id in sorted(client.brokers()):
        response = client.broker(node_id, request)
        check(response.error_code, f"transactions at broker {node_id}")
        if response.unknown_state_filters:
            raise CommandFailed(f"there is no state {response.unknown_state_filters[0]!r} of a transaction")
        found += [(node_id, each) for each in response.transaction_states]
    return sorted(found, key=lambda each: each[1].transactional_id)


def described_transaction(client: ClusterClient, transactional_id: str) -> TransactionState | None:
    """The state of a transactional id, or None if there is no such id. Raises CommandFailed for another error."""
    response = client.coordinator(
        CoordinatorKind.TRANSACTION,
        transactional_id,
        DescribeTransactionsRequest(transactional_ids=[transactional_id]),
        lambda response: [state.error_code for state in response.transaction_states],
    )
    state: TransactionState = response.transaction_states[0]
    if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return None
    check(state.error_code, repr(transactional_id))
    return state


def existing_transaction(client: ClusterClient, transactional_id: str) -> TransactionState:
    """The state of a transactional id. Raises CommandFailed with the nearest id if there is no such."""
    state = described_transaction(client, transactional_id)
    if state is None:
        known = [each.transactional_id for _, each in listed_transactions(client, ListTransactionsRequest())]
        raise unknown("transactional id", transactional_id, known)
    return state


def open_transactions(client: ClusterClient, producer_ids: Sequence[int]) -> dict[int, TransactionState]:
    """By producer id the transaction that its coordinator has for it; producer ids without one are left out."""
    if not producer_ids:
        return {}
    request = ListTransactionsRequest(producer_id_filters=list(dict.fromkeys(producer_ids)))
    found = {}
    for _, listed in listed_transactions(client, request):
        state = described_transaction(client, listed.transactional_id)
        if state is not None:
            found[state.producer_id] = state
    return found
