"""The tokens of a configuration, known only by their digests."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from mellea_like.gateway.config.cross_checks import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mellea_like.gateway.config.gateway_config import TokenSource

METRICS_KEY = "metrics_key"
"""The name under which errors, metrics and logs show the key for metrics."""

SHORTEST_TOKEN = 16
"""The minimum length of a token in characters. A shorter one could be guessed."""


class Tokens:
    """Finds the owner of each token, by the token's digest, and the problems of unusable tokens."""

    def __init__(
        self,
        keys: Mapping[str, TokenSource],
        metrics_key: TokenSource | None,
        environ: Mapping[str, str],
    ) -> None:
        self.owners: dict[bytes, str] = {}
        self.metrics: bytes | None = None
        self.problems: list[Problem] = []
        for name, key in keys.items():
            found = self._read(("keys", name), key, environ)
            if found in self.owners:
                what = f"the keys {self.owners[found]!r} and {name!r} have the same token"
                self.problems.append(Problem(("keys", name), what))
            elif found is not None:
                self.owners[found] = name
        if metrics_key is not None:
            place = ("server", METRICS_KEY)
            self.metrics = self._read(place, metrics_key, environ)
            if self.metrics in self.owners:
                # Otherwise a monitor could send requests, or a caller could be taken for a
                # monitor.
                what = (
                    f"the key {self.owners[self.metrics]!r} and server.{METRICS_KEY} have the"
                    " same token"
                )
                self.problems.append(Problem(place, what))

    def _read(
        self, place: tuple[str, str], key: TokenSource, environ: Mapping[str, str]
    ) -> bytes | None:
        if key.sha256 is not None:
            return bytes.fromhex(key.sha256)
        token = environ.get(key.env or "", "").strip()
        name = place[-1]
        if not token:
            what = f"the key {name!r} takes its token from {key.env}, which is not set"
        elif len(token) < SHORTEST_TOKEN:
            what = (
                f"the token of the key {name!r} (in {key.env}) is shorter than {SHORTEST_TOKEN}"
                " characters: generate a random one with: openssl rand -hex 32"
            )
        elif not all("!" <= c <= "~" for c in token):
            what = f"the token of the key {name!r} (in {key.env}) can't be sent in an HTTP header"
        else:
            return digest(token.encode("ascii"))
        self.problems.append(Problem(place, what))
        return None


def digest(token: bytes) -> bytes:
    """Return the SHA-256 digest that identifies a token."""
    return hashlib.sha256(token).digest()
