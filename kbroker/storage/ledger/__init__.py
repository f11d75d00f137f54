"""Numbered logs in the bucket and the claims that decide which broker may append to them."""
