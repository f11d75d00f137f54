"""The segment files of the write-ahead log: kept while it runs, recovered at a start, read by the command line."""
