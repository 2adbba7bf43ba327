"""HTTP: who may send requests, how many, and the form of refusals."""
