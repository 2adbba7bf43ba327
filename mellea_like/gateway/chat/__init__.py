"""Chat completions: requests, the calls that they become, and replies."""
