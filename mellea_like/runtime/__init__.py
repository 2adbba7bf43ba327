"""Event loops, threads and logging, as the rest of the library uses them."""
