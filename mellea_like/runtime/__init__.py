"""What the library needs of event loops, threads and logging, in one place each."""
