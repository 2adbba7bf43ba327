"""Sampling strategies, and the engine that runs their calls."""
