"""The files of the write-ahead log as a start and the command line read them."""
