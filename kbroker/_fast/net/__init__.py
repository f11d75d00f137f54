"""Sockets: transports and frames, events, connections, requests in their order, and the reactor that runs them."""
