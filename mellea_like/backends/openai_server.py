"""A server of OpenAI's protocols: its address, its key, and who runs it."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from mellea_like.lazy import needs_extra

with needs_extra("openai", "OpenAI's servers need the official SDK"):
    import openai

from mellea_like.backends.server_address import OFFICIAL_URL, Server
from mellea_like.backends.server_errors import Translator

__all__ = ["azure_client"]

NO_KEY = "no-key-needed"
"""The key for servers other than OpenAI's if none is given, because the SDK needs one."""

AZURE = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")
"""The ends of the names of hosts on which Azure has OpenAI's protocol, under ``/openai``."""


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
        given["base_url" if "/openai" in urlsplit(url).path else "azure_endpoint"] = url
    return openai.AsyncAzureOpenAI(**given)


class OpenAIServer(Server[openai.AsyncOpenAI]):
    """A server of OpenAI's protocols."""

    client_type = openai.AsyncOpenAI
    client_name = "an openai.AsyncOpenAI"
    official_url = OFFICIAL_URL
    url_variable = "OPENAI_BASE_URL"
    key_variable = "OPENAI_API_KEY"

    @property
    def has_azure_client(self) -> bool:
        """Whether the user passed a ready client that is the SDK's client for Azure."""
        return isinstance(self.given, openai.AsyncAzureOpenAI)

    @property
    def deployment(self) -> str | None:
        """The deployment in the URL of an Azure client; None if each request names its own."""
        return urlsplit(self.url).path.partition("/deployments/")[2].partition("/")[0] or None

    @property
    def is_azure(self) -> bool:
        """Whether the server is Azure's, judging by the client or by the URL."""
        # Under /models, these hosts have another protocol, which only knows max_tokens.
        its = "/openai" in urlsplit(self.url).path
        return self.has_azure_client or (its and self._host.endswith(AZURE))

    @property
    def is_official(self) -> bool:
        """Whether the server is OpenAI's own or Azure's."""
        return f".{self._host}".endswith(".api.openai.com") or self.is_azure

    @property
    def _host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def _placeholder(self) -> str:
        return "" if self.is_official else NO_KEY

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
