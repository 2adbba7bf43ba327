"""Merging the requests of many callers into one, which is approved and priced only once."""
