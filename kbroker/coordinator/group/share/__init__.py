"""Share groups (KIP-932): members, and which partitions have share state."""
