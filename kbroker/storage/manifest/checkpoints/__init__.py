"""Checkpoints of the manifest."""
