"""Chat sessions: their messages are queued, and those that wait are answered together."""
