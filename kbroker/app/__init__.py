"""One broker process: configuration, the composition root, the order of start and stop, memory, the data directory."""
