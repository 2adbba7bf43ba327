"""Chat completions and responses: requests, the calls that they become, and replies."""
