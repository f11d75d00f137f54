"""``kbroker consume`` and ``kbroker produce``: records as lines."""
