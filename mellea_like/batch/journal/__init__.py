"""The journal: a file from which a run can be resumed after a crash."""
