"""``kbroker transaction``."""
