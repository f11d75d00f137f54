"""Sockets: the poller, the reactor, connections, and requests in their order."""
