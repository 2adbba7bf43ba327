"""One model request for many callers, which is approved, priced and answered as one."""
