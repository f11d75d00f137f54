"""What runs a coordinator's shards: the event loop, their logs, loads and snapshots."""
