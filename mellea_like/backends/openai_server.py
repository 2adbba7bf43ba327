"""A server of OpenAI's protocols: its address, its key, and who runs it."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

try:
    import openai
except ImportError as exc:  # pragma: no cover
    msg = "OpenAI's servers need the official SDK: pip install 'mellea-like[openai]'"
    raise ImportError(msg) from exc

from mellea_like.backends.sdk_errors import Translator
from mellea_like.backends.server_address import (
    OFFICIAL_URL,
    Secret,
    split_url,
    usable_key,
    without_credentials,
)
from mellea_like.errors import AuthenticationFailed

__all__ = ["OpenAIServer", "azure_client"]

NO_KEY = "no-key-needed"
"""The key for servers other than OpenAI's if none is given, because the SDK needs one."""

AZURE = ".openai.azure.com"


def azure_client(url: str | None = None) -> openai.AsyncAzureOpenAI:
    """Return the SDK's Azure client, with key and API version from the environment variables.

    Args:
        url: the URL of the endpoint, or the full base URL of its requests, which contains
            ``/openai``; None for ``AZURE_OPENAI_ENDPOINT``.

    Returns:
        The client, for `OpenAIBackend` and `OpenAIBatches`.

    Raises:
        openai.OpenAIError: an environment variable is missing.
    """
    given: Any = {}
    if url is not None:
        given["base_url" if "/openai" in url else "azure_endpoint"] = url
    return openai.AsyncAzureOpenAI(**given)


class OpenAIServer:
    """The server that a backend's arguments describe: its URL, its key, and who runs it.

    Args:
        base_url: the server's URL; None for ``OPENAI_BASE_URL``, else OpenAI's own server.
        api_key: the key; None for ``OPENAI_API_KEY``.
        client: a ready client, instead of ``base_url`` and ``api_key``.

    Attributes:
        given: ``client``, as given.

    Raises:
        TypeError: ``client`` isn't an `openai.AsyncOpenAI`.
        ValueError: ``base_url`` isn't an HTTP URL, or ``client`` is combined with a key or a URL.
    """

    def __init__(
        self, base_url: str | None, api_key: str | None, client: openai.AsyncOpenAI | None
    ) -> None:
        if client is not None:
            if not isinstance(client, openai.AsyncOpenAI):
                msg = f"client must be an openai.AsyncOpenAI, not {type(client).__name__}"
                raise TypeError(msg)
            if base_url is not None or api_key is not None:
                msg = (
                    "client can't be combined with base_url or api_key: the client already has both"
                )
                raise ValueError(msg)
        if base_url is not None:
            split_url(base_url, "base_url")
        self._base_url = base_url
        self._key = None if api_key is None else Secret(api_key)
        self.given = client

    def __repr__(self) -> str:
        return f"<OpenAIServer at {self._base_url}, key {self._key}>"

    @property
    def url(self) -> str:
        """The URL, which may contain credentials."""
        if self.given is not None:
            return str(self.given.base_url)
        return self._base_url or os.environ.get("OPENAI_BASE_URL") or OFFICIAL_URL

    @property
    def shown_url(self) -> str:
        """The URL without credentials and query.

        Raises:
            ValueError: ``OPENAI_BASE_URL`` isn't a URL.
        """
        return urlunsplit(urlsplit(without_credentials(urlsplit(self.url)))._replace(query=""))

    @property
    def has_azure_client(self) -> bool:
        """Whether the user passed a ready client that is the SDK's client for Azure."""
        return isinstance(self.given, openai.AsyncAzureOpenAI)

    @property
    def is_azure(self) -> bool:
        """Whether the server is Azure's, judging by the client or by the host's name."""
        return self.has_azure_client or self._host.endswith(AZURE)

    @property
    def is_official(self) -> bool:
        """Whether the server is OpenAI's own or Azure's."""
        host = self._host
        official = host == "api.openai.com" or host.endswith(".api.openai.com")
        return official or self.is_azure

    @property
    def _host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def api_key(self) -> str:
        """The key to send, or a placeholder if no key is set and the server needs none.

        Raises:
            AuthenticationFailed: a key is needed and there is none, or the key can't be sent.
        """
        key = self._key.value if self._key is not None else os.environ.get("OPENAI_API_KEY", "")
        key = key.strip()
        if not key:
            if not self.is_official:
                return NO_KEY
            msg = f"no API key for {self.shown_url}: set OPENAI_API_KEY or pass api_key="
            raise AuthenticationFailed(msg)
        return usable_key(key)

    def translator(
        self,
        client: Any,
        model: str | None,
        timeout: float | None,
        total: float | None = None,
        hint: str = "",
    ) -> Translator:
        """Return a translator of errors that removes the client's current secrets from messages."""
        # Made after the request: a client may fetch its key for each.
        url = urlsplit(self.url)
        token = getattr(client, "_azure_ad_token", None)
        secrets = (client.api_key, token, url.password, unquote(url.password or ""), url.query)
        return Translator(self.shown_url, model, timeout, filter(None, secrets), total, hint)
