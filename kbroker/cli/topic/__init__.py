"""``kbroker topic``."""
