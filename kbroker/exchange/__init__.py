"""Other products' ways of keeping logs: read into a cluster's store, and written from it, with no broker running."""
