"""The HTTP server, the limits on who may send how many requests, and the application itself."""
