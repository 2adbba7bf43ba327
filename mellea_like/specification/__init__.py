"""Strategies and upstreams described by configuration.

The command line's options and the gateway's YAML are both read into these models. They are checked
here once, and then made into real objects.
"""
