"""The command ``mellea-like watch``."""
