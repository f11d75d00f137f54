"""Compiled modules. There is no pure-Python fallback: a missing extension is a start-up error."""
