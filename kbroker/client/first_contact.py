"""The first contact with a cluster whose brokers may be restarting."""

from __future__ import annotations

import logging

from kbroker.client.cluster_client import ClientError, ClusterClient, Timeouts
from kbroker.retry_policy import RetryPolicy

logger = logging.getLogger(__name__)


def reached(bootstrap: str, client_id: str, timeouts: Timeouts) -> ClusterClient:
    """A client that has reached the cluster, for which it waits up to `timeouts.api_s`. Raises ClientError, ValueError.

    A ClusterClient alone gives up at once if no broker has ever answered it.
    """
    failure: ClientError | None = None
    for _ in RetryPolicy(timeouts.api_s, wait_max_s=1.0).attempts():
        client = ClusterClient(bootstrap, client_id, timeouts)
        try:
            client.cluster_id()
            return client
        except ClientError as error:
            client.close()
            if failure is None:
                logger.warning("%s: %s; trying for %.0f s", client_id, error, timeouts.api_s)
            failure = error
    raise ClientError(str(failure))
