"""Strategies and upstreams described by configuration.

The command line's options and the gateway's YAML are both read into these pydantic models, which
check the values once, and then make the real objects.
"""
