"""Group and offset state as records in our own log: handlers decide, replay mutates."""
