"""How many brokers share one ledger: the rules of docs/cluster-protocol.md, without threads, sockets and clocks."""
