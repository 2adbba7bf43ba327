"""The nouns of the library: pure and frozen, without I/O and without an event loop."""
