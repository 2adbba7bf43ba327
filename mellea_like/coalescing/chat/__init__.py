"""Chat sessions, in which waiting messages are queued and answered together."""
