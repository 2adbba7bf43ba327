"""The options of a call, one in a module: each knows the ports and the nouns, and no other."""
