"""Derive the seed of each request of a call from the seed of the call."""

from __future__ import annotations


def derive_seed(seed: int, iteration: int, purpose: str = "generate") -> int:
    """Derive a request's seed from the call's ``seed``, so that each draw has an unrelated one."""
    from hashlib import blake2b  # noqa: PLC0415 (it loads OpenSSL)

    digest = blake2b(f"{seed}/{iteration}/{purpose}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1
