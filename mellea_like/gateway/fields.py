"""The tables that decide how each field of a request is handled.

The how-to page about the gateway shows the tables. A test compares them with the lists in OpenAI's
SDK, so that no field is forgotten.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias, cast

from mellea_like.gateway.refusal import refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

FieldUse: TypeAlias = Literal["forward", "drop", "refuse"]
"""The ways in which a configuration can handle a field."""

Fate: TypeAlias = Literal["honoured", "forwarded", "dropped", "refused"]

UNSUPPORTED = "unsupported_parameter"
UNKNOWN = "unknown_parameter"
"""The error code for a field that the gateway doesn't know."""


class Field(NamedTuple):
    """How a field is handled. A value in ``idle`` is ignored even if the field is refused."""

    fate: Fate
    note: str = ""
    idle: tuple[Any, ...] = ()


def _honoured(*names: str) -> dict[str, Field]:
    return dict.fromkeys(names, Field("honoured"))


_CACHE = {
    name: Field("forwarded")
    for name in ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
}

_LABELS = dict.fromkeys(("safety_identifier", "user"), Field("dropped", "a label"))

_TIER = Field("refused", "other tiers have other prices", ("auto", "default"))

_PENALTIES = dict.fromkeys(
    ("presence_penalty", "frequency_penalty"), Field("honoured", "forwarded")
)

_MODERATION = Field("refused", "a reply has no field for its results")

_FUNCTIONS = Field("refused", "deprecated by OpenAI: send `tools`")

CHAT_FIELDS: Mapping[str, Field] = MappingProxyType(
    {
        **_honoured("model"),
        "messages": Field("honoured", "texts, tool calls and their results; other parts forwarded"),
        **_honoured("temperature", "top_p"),
        "max_completion_tokens": Field("honoured", "at most the key's `max_tokens`"),
        "max_tokens": Field("honoured", "the same, under its older name"),
        **_honoured("stop"),
        "seed": Field("honoured", "each draw's seed is derived from it"),
        "n": Field("honoured", "at most the key's `max_n`"),
        "response_format": Field("honoured", "forwarded, and the reply is checked against it"),
        "stream": Field("honoured"),
        "stream_options": Field("honoured", "`include_usage`"),
        "tools": Field("honoured", "of type `function`; calls are checked against them"),
        "tool_choice": Field("honoured", "forwarded, and the reply is checked against it"),
        "parallel_tool_calls": Field("honoured", "`false` fails a reply with several calls"),
        "logprobs": Field("honoured", "forwarded; a reply has the log-probabilities of its text"),
        "top_logprobs": Field("honoured", "forwarded"),
        "mellea_like": Field("honoured", "this gateway's own"),
        **dict.fromkeys(
            (
                "frequency_penalty",
                "logit_bias",
                "prediction",
                "presence_penalty",
                "reasoning_effort",
                "verbosity",
            ),
            Field("forwarded"),
        ),
        **_CACHE,
        "metadata": Field("dropped", "a label"),
        **_LABELS,
        "store": Field("dropped", "nothing is stored"),
        "audio": Field("refused", "a spoken reply can't be checked"),
        "modalities": Field(
            "refused", "only `text` is accepted, because a reply is text", (["text"],)
        ),
        "moderation": _MODERATION,
        "service_tier": _TIER,
        "web_search_options": Field("refused", "hosted tools are not metered"),
        "functions": _FUNCTIONS,
        "function_call": _FUNCTIONS,
    }
)
"""The fields of a chat completion request."""

RESPONSES_FIELDS: Mapping[str, Field] = MappingProxyType(
    {
        **_honoured("model"),
        "input": Field("honoured", "a text, or items; `reasoning` items are skipped"),
        "instructions": Field("honoured", "the system message"),
        **_honoured("temperature", "top_p"),
        **_PENALTIES,
        "max_output_tokens": Field("honoured", "at most the key's `max_tokens`"),
        "tools": Field(
            "honoured",
            "of type `function`, `custom` and `namespace`; calls are checked against them",
        ),
        "tool_choice": Field("honoured", "forwarded, and the reply is checked against it"),
        "parallel_tool_calls": Field("honoured", "`false` fails a reply with several calls"),
        "text": Field("honoured", "`format` is checked, `verbosity` forwarded"),
        "reasoning": Field("honoured", "`effort` is forwarded, `summary` has no effect"),
        "include": Field("honoured", "`message.output_text.logprobs`"),
        "top_logprobs": Field("honoured", "forwarded"),
        "metadata": Field("honoured", "repeated in the response, but not forwarded"),
        "stream": Field("honoured"),
        "stream_options": Field("honoured", "accepted, but without effect"),
        "mellea_like": Field("honoured", "this gateway's own"),
        **_CACHE,
        **_LABELS,
        "store": Field("dropped", "nothing is stored, and responses have `store: false`"),
        "max_tool_calls": Field("dropped", "it limits calls of hosted tools"),
        "previous_response_id": Field(
            "refused", "nothing is stored: send the whole conversation as `input`"
        ),
        "conversation": Field("refused", "nothing is stored"),
        "prompt": Field("refused", "nothing is stored"),
        "background": Field("refused", "nothing is stored", (False,)),
        "background_options": Field("refused", "nothing is stored"),
        "truncation": Field("refused", "conversations are never cut", ("disabled",)),
        "context_management": Field("refused", "conversations are never cut"),
        "image": Field("refused", "chat completions have no such field"),
        "moderation": _MODERATION,
        "service_tier": _TIER,
        "access_programs": Field("refused", "chat completions have no such field"),
    }
)
"""The fields of a request to ``/v1/responses``."""


def plain_name(name: str) -> str:
    """Return a name in lower case without ``-`` and ``_``: some servers accept any spelling."""
    return name.lower().replace("-", "").replace("_", "")


def _names(*lines: str) -> frozenset[str]:
    """Return the plain forms of the names in some lines, which are separated by spaces."""
    return frozenset(plain_name(name) for line in lines for name in line.split())


KEPT_BACK = _names(
    # The destination and identity of a request, which other gateways read from a body.
    "api_base api_key api_version base_url bootstrap_host bootstrap_port bootstrap_room",
    "custom_llm_provider extra_body extra_headers extra_query fallbacks headers",
    "kv_transfer_params models organization provider route",
    # The cost of a request: other names for fields that a key's limits restrict.
    "best_of compound_custom enable_search max_length max_new_tokens mcp_servers n_cmpl",
    "n_predict num_predict num_return_sequences plugins search_options search_parameters",
    "search_settings use_beam_search web_search",
    # Other callers' share of the upstream: their priority and their state.
    "id_slot priority request_id rid session_params slot_id",
    # A caller's own code that the server would run.
    "custom_logit_processor",
)
"""Fields that some servers accept, and that are never forwarded under any configuration."""

FORMATS = _names(
    # vLLM ("Structured Outputs"), SGLang, llama.cpp's server.
    "ebnf grammar guided_choice guided_grammar guided_json guided_regex json_schema regex",
    "structural_tag structured_outputs",
)
"""Other servers' fields for the format of replies. The gateway can't check replies against them."""

HOSTED = _names(
    "bash code_execution code_interpreter computer_use computer_use_preview",
    "enterprise_web_search file_search google_maps google_search google_search_retrieval",
    "image_generation local_shell mcp retrieval url_context web_fetch web_search",
    "web_search_preview",
)
"""Fields in a tool's definition that would make the upstream run one of its own tools."""

MEDIA = _names(
    "audio audio_embeds audio_url file file_data file_id file_url image image_embeds image_pil",
    "image_url input_audio source url video video_url",
    # vLLM's id of an image that was sent before, perhaps by another caller.
    "uuid",
)
"""Fields that would give a part of a message other content than its ``type`` declares."""


def why_not(name: str, use: FieldUse) -> str:
    """Return the reason why a configuration can't set a field to ``use``; empty if it can."""
    needed = name in ("model", "messages", "input")
    honoured = [
        table[name].fate == "honoured" for table in (CHAT_FIELDS, RESPONSES_FIELDS) if name in table
    ]
    if needed or (use == "forward" and (is_kept_back(name) or any(honoured))):
        return "the gateway itself handles this field"
    return ""


class FieldRules(NamedTuple):
    """A model's rules for the fields of requests, including web URLs and hosted tools."""

    unknown: FieldUse | None = None
    """The configured rule for fields in no table. If None, it depends on the upstreams."""
    named: Mapping[str, FieldUse] = MappingProxyType({})
    forwards: bool = False
    """Whether the model's upstreams can take unknown fields."""
    media_urls: bool = False
    hosted_tools: Literal["drop", "refuse"] = "refuse"

    @property
    def outside(self) -> FieldUse:
        """The rule for unknown fields at the top of a chat completion request."""
        # A new field at the top asks for something. One inside an object only adds to it.
        return self.unknown or ("forward" if self.forwards else "refuse")

    @property
    def inside(self) -> FieldUse:
        """The rule for unknown fields inside messages, parts, calls and tools."""
        return self.unknown or ("forward" if self.forwards else "drop")

    @property
    def of_responses(self) -> FieldUse:
        """The rule for unknown fields of ``/v1/responses``, which are never forwarded."""
        return "refuse" if self.unknown == "refuse" else "drop"


DEFAULTS = FieldRules()


def says_nothing(value: object) -> bool:
    """Return whether a value is null, an empty list, or an object of only such values."""
    if isinstance(value, dict):
        return all(map(says_nothing, cast("dict[str, Any]", value).values()))
    return value is None or value == []


def read_fields(
    body: Mapping[str, Any],
    table: Mapping[str, Field],
    named: Mapping[str, FieldUse],
    unknown: FieldUse,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields that the gateway uses, and those that it only forwards."""
    honoured: dict[str, Any] = {}
    forwarded: dict[str, Any] = {}
    for name, value in body.items():
        field = table.get(name)
        fate = _FATES[named[name]] if name in named else _fate(name, table, unknown)
        if fate == "honoured":
            honoured[name] = value
        elif value is None or value == [] or fate == "dropped":
            continue
        elif fate == "forwarded":
            if field is None or value != {}:
                forwarded[name] = value
        elif field is None:
            if not says_nothing(value):
                _refuse_unknown(name)
        elif not any(value == idle and type(value) is type(idle) for idle in field.idle):
            msg = (
                f"the gateway doesn't support this: {field.note}"
                if field.fate == "refused"
                else "this model doesn't accept this field"
            )
            refuse(name, msg, UNSUPPORTED)
    return honoured, forwarded


_FATES: Mapping[FieldUse, Fate] = {"forward": "forwarded", "drop": "dropped", "refuse": "refused"}


def is_kept_back(name: str) -> bool:
    """Return whether a field is in `KEPT_BACK`, in any spelling, and so is never forwarded."""
    return plain_name(name) in KEPT_BACK


def _refuse_unknown(name: str) -> NoReturn:
    if plain_name(name) in FORMATS:
        what = "send response_format instead, so that replies can be checked"
        refuse(name, f"the gateway doesn't support this: {what}", UNSUPPORTED)
    refuse(name, "the gateway doesn't know this field", UNKNOWN)


def _fate(name: str, table: Mapping[str, Field], unknown: FieldUse) -> Fate:
    if (field := table.get(name)) is not None:
        return field.fate
    # A field of the other endpoint has a meaning there, and upstreams would take it for that.
    elsewhere = name in CHAT_FIELDS or name in RESPONSES_FIELDS
    if elsewhere or is_kept_back(name) or plain_name(name) in FORMATS:
        return "refused"
    return _FATES[unknown]


def why_kept_out(place: str, name: str) -> str:
    """Return the reason why no rule allows a field in a message, part or tool, or ""."""
    plain = plain_name(name)
    if place == "tool" and plain in HOSTED:
        return "hosted tools are not metered"
    if place == "part" and plain in MEDIA:
        return "a part can only have the content that its type names"
    if place == "message" and name == "function_call":
        return "deprecated by OpenAI: send tool_calls"
    return ""
