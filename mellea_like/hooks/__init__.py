"""Plugins: what they are told, what they may change, and how they are registered."""
