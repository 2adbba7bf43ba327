"""Rows: the formats of input and output files, and prompts made from them."""
