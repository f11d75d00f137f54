"""``kbroker support-bundle``."""
