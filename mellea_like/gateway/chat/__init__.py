"""Chat completions and responses: requests, the calls made for them, and replies."""
