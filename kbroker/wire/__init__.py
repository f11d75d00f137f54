"""The listeners and what a request that is not served below Python goes through: connection quotas, dispatch."""
