"""APIs of the cluster, its brokers and its clients' metrics."""
