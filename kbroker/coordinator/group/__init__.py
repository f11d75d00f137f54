"""The groups of `__consumer_offsets`: what groups of all types share."""
