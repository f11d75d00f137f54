"""From the write-ahead log to objects: what is flushed when, how fast, and under which record."""
