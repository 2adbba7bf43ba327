"""Coalescers: many small requests that arrive together cost one."""
