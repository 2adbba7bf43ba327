"""The gateway's configuration file, and the backends that it names."""
