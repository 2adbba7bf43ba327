"""When the iterations of a call may start."""
