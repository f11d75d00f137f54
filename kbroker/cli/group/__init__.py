"""``kbroker group``: the groups of a cluster, how far they have read, and where they read next."""
