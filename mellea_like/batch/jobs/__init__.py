"""Runs that submit the requests of each round together, as jobs of a provider's batch API."""
