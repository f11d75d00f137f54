"""Committed offsets: commit, fetch, expiry, and commits in transactions."""
