"""The command ``mellea-like batch``."""
