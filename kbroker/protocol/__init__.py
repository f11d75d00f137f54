"""Bytes to messages and back: field tables, one compiler, headers, on-log record schemas. No I/O, no state."""
