"""What works on stored logs without being asked: retention, compaction, merging, swap proposals."""
