"""The plans of a call: which draw starts next, and what it asks."""
