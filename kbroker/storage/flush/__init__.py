"""From the write-ahead log to objects: what is flushed when, how fast, and by which record."""
