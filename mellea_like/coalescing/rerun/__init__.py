"""One run at a time of what must be redone when something changes."""
