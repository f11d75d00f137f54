"""Produce and Fetch: from a frame to its answer."""
