"""Share groups' view of partitions (KIP-932): who holds which records; fetches and acknowledgements."""
