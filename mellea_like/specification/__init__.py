"""Strategies and upstreams that are described by configuration.

The command line's options and the gateway's YAML are both read into these models, which check them
once and build the real objects.
"""
