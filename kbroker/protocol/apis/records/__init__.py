"""APIs of records: produce, fetch, offsets, deletion."""
