"""The parts of an upstream's error that a caller may see: code, field and type, if known.

Clients use them to decide whether to shorten a conversation, use another model, or retry later.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mellea_like.backends.output_mode import refuses

if TYPE_CHECKING:
    from mellea_like.errors import BackendError

CONTEXT_LENGTH = "context_length_exceeded"

CODES = frozenset(
    name
    for line in (
        # OpenAI's reference: "Error codes", and errors about parameters of chat completions.
        "array_above_max_length array_below_min_length content_policy_violation",
        "context_length_exceeded decimal_above_max_value decimal_below_min_value empty_array",
        "insufficient_quota integer_above_max_value integer_below_min_value",
        "invalid_function_parameters invalid_json_schema invalid_type invalid_value",
        "missing_required_parameter rate_limit_exceeded string_above_max_length",
        "string_below_min_length unknown_parameter unsupported_parameter unsupported_value",
        # ResponseError in the official SDK (openai.types.responses), without servers' own faults.
        "bio_policy empty_image_file failed_to_download_image image_content_policy_violation",
        "image_file_not_found image_file_too_large image_parse_error image_too_large",
        "image_too_small invalid_base64_image invalid_image invalid_image_format",
        "invalid_image_mode invalid_image_url invalid_prompt misalignment_policy_violation",
        "unsupported_image_media_type",
        # Azure ("Content filtering", the errors of prompts).
        "content_filter",
    )
    for name in line.split()
)
"""The error codes that callers may see: about a mistake in a request, or too many requests."""

TYPES = frozenset(
    {
        # OpenAI; the kind of limit is the type of its 429.
        "insufficient_quota",
        "invalid_request_error",
        "rate_limit_error",
        "requests",
        "tokens",
        # vLLM (`ErrorResponse` of its OpenAI-compatible server), which has few codes.
        "BadRequestError",
        # llama.cpp (`format_error_response` of its server).
        "exceed_context_size_error",
    }
)
"""Types of errors that callers may see."""

_TOO_LONG = re.compile(
    # vLLM, SGLang and OpenAI's older models; llama.cpp; Anthropic; Gemini.
    r"maximum context length|model's context length|exceeds the available context size"
    r"|prompt is too long|input token count .{0,40}exceeds",
    re.IGNORECASE,
)
"""Matches messages about a prompt that is too long, from servers without an error code for it."""

_PLACE = re.compile(r"[A-Za-z_][\w.\[\]-]{0,199}", re.ASCII)


SCHEMA = "json_schema"
"""The field that an upstream means if it refuses a JSON Schema without naming a field."""


def keep_known(error: BackendError, of: BackendError) -> None:
    """Give ``error`` the code, the field and the type of ``of`` that callers may see."""
    code = of.code if of.code in CODES else None
    if code is None and of.status in (400, 413, 422) and _TOO_LONG.search(of.said):
        code = CONTEXT_LENGTH
    error.code = code
    error.kind = of.kind if of.kind in TYPES else None
    if of.param is not None and _PLACE.fullmatch(of.param):
        error.param = of.param
    elif refuses("json_schema", of):
        error.param = SCHEMA
