"""Objects that take the place of others: merges, swap proposals, and orphans."""
