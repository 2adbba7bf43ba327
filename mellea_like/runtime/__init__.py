"""Helpers for event loops, threads and logging."""
