"""Objects that replace others: merges, swap proposals, and the sweep of orphans."""
