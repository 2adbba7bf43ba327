"""The options of a call, one per module; no option knows any other."""
