"""Seeds: each request of a call gets its own, derived from the call's."""

from __future__ import annotations

__all__ = ["derive_seed"]


def derive_seed(seed: int, iteration: int, purpose: str = "generate") -> int:
    """Derive a request's seed from the call's, so that each draw gets an unrelated seed."""
    from hashlib import blake2b  # noqa: PLC0415 (it loads OpenSSL)

    digest = blake2b(f"{seed}/{iteration}/{purpose}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1
