"""Chat sessions: messages are queued, and those that wait are answered together."""
