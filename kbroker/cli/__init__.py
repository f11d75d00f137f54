"""Command line: serve, flush, topic, group, produce, consume, object."""
