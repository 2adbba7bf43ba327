"""Limits: what keeps concurrent sampling affordable. Each makes a backend of a backend."""

from mellea_like.limits.base import Limit, LimitedBackend, Permit, RequestEnd

__all__ = ["Limit", "LimitedBackend", "Permit", "RequestEnd"]
