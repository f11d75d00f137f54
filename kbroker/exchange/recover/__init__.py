"""Recovery of a cluster whose manifest cannot be loaded."""
