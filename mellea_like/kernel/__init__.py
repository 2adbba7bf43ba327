"""The kernel of a call: the ports, the race of its lanes, one draw, and how a call ends.

It knows no option. Everything optional is a module that knows these ports and the types in
``core``, and is listed in the table of options.
"""
