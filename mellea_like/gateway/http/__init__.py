"""HTTP: who may ask, how much, and what a refusal says."""
