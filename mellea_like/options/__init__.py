"""The optional features of a call, as `Option` subclasses that don't depend on each other."""
