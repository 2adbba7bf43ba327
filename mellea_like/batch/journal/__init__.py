"""The journal: a file from which a run goes on after a crash."""
