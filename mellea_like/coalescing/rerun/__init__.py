"""Run something again after changes, one run at a time."""
