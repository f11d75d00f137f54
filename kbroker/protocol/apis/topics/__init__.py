"""APIs of topics and their partitions."""
