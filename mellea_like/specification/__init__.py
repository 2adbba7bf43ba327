"""What a strategy and its upstream are when they come from outside.

The command line's options and the gateway's YAML are both read into these models, which check them
once and build the real objects.
"""
