"""The kernel of a call: its ports, the race of its lanes, a single draw, and the end of a call.

It knows no option. Everything optional is a module that knows these ports and the types in
``core``, and is listed in the table of options.
"""
