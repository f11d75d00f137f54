"""The write-ahead log: appends, commits, segment files, and what is read back of them."""
