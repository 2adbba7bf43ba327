"""One model request for many callers: what they ask is approved, priced and answered together."""
