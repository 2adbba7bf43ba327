"""The kernel of a call: its ports, the race of its lanes, a single draw, and the end of a call.

Optional features (options) depend on these ports and on the types in ``core``; the kernel imports
no option. ``sampling/table.py`` lists all options.
"""
