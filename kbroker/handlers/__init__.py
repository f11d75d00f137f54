"""One thin file per API."""
