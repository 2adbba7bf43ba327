"""The journal: a file from which a run is resumed after a crash."""
