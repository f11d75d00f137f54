"""Commands for a bucket or a data directory, without a running broker."""
