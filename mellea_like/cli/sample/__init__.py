"""The command ``mellea-like sample``."""
