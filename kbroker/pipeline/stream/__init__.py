"""The driver's side of a stream: where its micro-batches start and end, and what its progress shows."""
