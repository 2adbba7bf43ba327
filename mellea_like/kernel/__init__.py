"""The kernel of a call: the ports, the race of its lanes, one draw, and how a call ends.

It knows no option. Everything optional is a module that knows these ports and the nouns in
``core``, and is named in the table of options.
"""
