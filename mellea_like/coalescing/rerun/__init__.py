"""Redo something after changes, one run at a time."""
