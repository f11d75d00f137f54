"""For operators: metrics, health over HTTP, the control socket."""
