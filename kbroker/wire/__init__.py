"""Sockets: listeners, connections, framing, dispatch."""
