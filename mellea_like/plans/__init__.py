"""The plans of a call, which decide which draw starts next, and what that draw asks."""
