"""The kernel of a call: its ports, the race of its lanes, a single draw, and the end of a call.

The kernel imports no option. Each optional feature is a module that depends on these ports and on
the types in ``core``, and is listed in the table of options.
"""
