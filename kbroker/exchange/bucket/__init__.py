"""Buckets of klite and KafScale: read for an import, and written by an export."""
