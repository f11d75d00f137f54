"""Background tasks on stored logs: retention, compaction, merging, swap proposals."""
