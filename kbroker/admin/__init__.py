"""What an operator sees and asks: metrics, health over HTTP, the control socket."""
