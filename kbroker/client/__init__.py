"""The client side of the protocol: what commands and Spark jobs say to brokers, and brokers to each other."""
