"""The manifest: which objects hold which offsets of which partition, and its checkpoints."""
