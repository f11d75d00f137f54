"""Share groups' view of partitions (KIP-932): which member holds which records, fetches and acknowledgements."""
