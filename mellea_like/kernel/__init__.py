"""The kernel of a call: its ports, the race of its lanes, a single draw, and the end of a call.

The kernel imports no option. Options depend on its ports and on the types in ``core``.
"""
