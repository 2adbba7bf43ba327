"""The options of a call, one in a module; no option knows another."""
