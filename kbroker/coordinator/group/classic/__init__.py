"""Groups of the classic protocol: members assign partitions among themselves."""
