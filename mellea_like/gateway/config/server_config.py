"""The configuration's ``server`` and ``keys``: where it listens, who may ask, and how much."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from mellea_like.specification.section import Seconds, Section, Whole
from mellea_like.specification.strategy import BudgetSpec

__all__ = ["ANONYMOUS", "KeyConfig", "KeyLimits", "KeyName", "ServerConfig"]

ANONYMOUS = "anonymous"
"""What callers are called where no keys are configured."""

KeyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""What a key is called in metrics and logs."""


class KeyLimits(Section):
    """How much one key may ask for at a time.

    Args:
        max_n: the highest ``n`` of a request.
        max_tokens: the highest ``max_tokens`` of a request, and what holds where it says nothing.
        concurrency: how many of its requests are worked on at a time.
        queue: how many more may wait for that; 0 for none.
        queue_seconds: how long one waits at most.
        budget: what it may spend in all; None for no limit.
    """

    max_n: Whole = 4
    max_tokens: Whole = 4096
    concurrency: Whole = 16
    queue: Annotated[int, Field(ge=0, strict=True)] = 64
    queue_seconds: Seconds = 30.0
    budget: BudgetSpec | None = None


class KeyConfig(KeyLimits):
    """A token that opens the gateway, and its limits; exactly one of ``env`` and ``sha256``.

    Args:
        env: the environment variable that holds the token.
        sha256: the token's SHA-256 in hexadecimal digits, so that the file has no secret in it.
    """

    env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{64}$")

    @model_validator(mode="after")
    def _one_source(self) -> KeyConfig:
        if (self.env is None) == (self.sha256 is None):
            msg = "a key takes either env (a variable's name) or sha256 (of its token)"
            raise ValueError(msg)
        return self


class ServerConfig(Section):
    """Where the gateway listens, and what it puts up with.

    Args:
        host: the address to listen on. Any other than the loopback needs a key.
        port: the port; 0 takes a free one.
        allowed_hosts: further values of the ``Host`` header that are answered where no keys are
            configured, without a port. The loopback's names and ``host`` always are.
        max_body: the longest body, in bytes.
        max_depth: how deep JSON may be nested.
        max_header_bytes: the longest request line with its headers, in bytes.
        max_connections: how many connections may be open at a time; a further one is closed.
            Where a quarter of them have not shown a key, the oldest of those is, instead.
        header_seconds: how long the request line and the headers may take.
        body_seconds: how long the body may take.
        keep_alive_seconds: how long a connection stays open between two requests.
        stop_seconds: how long requests under way may go on once the server is asked to stop.
        limits: what callers may ask for where no keys are configured.
    """

    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    port: int = Field(default=8080, ge=0, le=65_535, strict=True)
    allowed_hosts: tuple[str, ...] = ()
    max_body: Whole = 4 * 2**20
    max_depth: Annotated[int, Field(ge=4, le=200, strict=True)] = 32
    max_header_bytes: Annotated[int, Field(ge=1024, le=2**20, strict=True)] = 16 * 2**10
    max_connections: Whole = 512
    header_seconds: Seconds = 10.0
    body_seconds: Seconds = 30.0
    keep_alive_seconds: Seconds = 5.0
    stop_seconds: Seconds = 10.0
    limits: KeyLimits = KeyLimits()
