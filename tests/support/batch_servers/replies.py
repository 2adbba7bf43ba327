"""Replies that depend only on the request, so that a run's bill can be predicted."""

from __future__ import annotations

import hashlib
import json
from random import Random
from typing import Any, NamedTuple

from batch_servers.settings import Settings


class Drawn(NamedTuple):
    """A model's output: a text, or a tool's name with its arguments."""

    text: str
    tool: str | None
    arguments: dict[str, Any] | None
    thought: str
    input_tokens: int
    output_tokens: int
    cut: bool
    right: bool


class Asked(NamedTuple):
    """A request, in any provider's words.

    Attributes:
        model: the model.
        texts: the texts of the conversation.
        schema: the JSON Schema of the reply; an empty one for any JSON; None for free text.
        tool: the name and the schema of a tool that has to be called.
        most: the most tokens of the reply.
        thinks: whether the model thinks aloud.
    """

    model: str
    texts: list[str]
    schema: dict[str, Any] | None = None
    tool: tuple[str, dict[str, Any]] | None = None
    most: int | None = None
    thinks: bool = False


def count(text: str) -> int:
    """Count a text's tokens, which are its words."""
    return len(text.split())


def input_tokens(asked: Asked) -> int:
    """Count a prompt's tokens."""
    return sum(map(count, asked.texts)) + 3 * len(asked.texts)


def draw(settings: Settings, asked: Asked, body: Any, custom_id: str) -> Drawn:
    """Return the model's output for a request."""
    key = json.dumps(body, sort_keys=True) + custom_id
    rng = Random(f"{settings.seed}|{hashlib.sha256(key.encode()).hexdigest()}")
    right = rng.random() < settings.pass_rate
    word = "right" if right else "wrong"
    tool, arguments = None, None
    if asked.tool is not None:
        tool, arguments = asked.tool[0], value(asked.tool[1], word, asked.tool[1])
        text = ""
    elif asked.schema is not None:
        schema = asked.schema
        text = json.dumps(value(schema, word, schema) if schema else {"value": word})
    else:
        words = rng.choices(["amber", "birch", "cedar", "delta", "ember"], k=rng.randint(2, 12))
        text = f"{word}: {' '.join(words)}"
    thought = "let me think about it" if asked.thinks else ""
    said = text or json.dumps(arguments)
    tokens, cut = count(said) + count(thought), False
    if asked.most is not None and tokens > asked.most:
        text, tokens, cut = " ".join(text.split()[: asked.most]), asked.most, True
    return Drawn(text, tool, arguments, thought, input_tokens(asked), tokens, cut, right)


def value(schema: dict[str, Any], word: str, root: dict[str, Any]) -> Any:  # noqa: C901, PLR0911
    """Make a value that a schema allows, with the word as each of its texts."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return value(root["$defs"][name], word, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0 if word == "right" else -1]
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return value(schema[name][0], word, root)
    match schema.get("type"):
        case "object":
            inside = schema.get("properties") or {}
            return {name: value(part, word, root) for name, part in inside.items()}
        case "array":
            return [value(schema.get("items") or {}, word, root)]
        case "integer" | "number":
            return 1 if word == "right" else 0
        case "boolean":
            return word == "right"
        case "null":
            return None
        case _:
            return word
