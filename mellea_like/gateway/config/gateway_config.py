"""The gateway's configuration: what stands in its file, checked as a whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from mellea_like.gateway.config.models import ModelConfig, StreamingConfig
from mellea_like.gateway.config.server_config import KeyConfig, KeyName, ServerConfig
from mellea_like.specification.section import Section, message_of
from mellea_like.specification.upstream import OpenAIUpstream, UpstreamSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import ErrorDetails

    from mellea_like.gateway.config.yaml_text import Document

__all__ = ["ConfigError", "GatewayConfig", "read_config"]

MAX_BYTES = 2**20

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$")]
"""The name of a model or an upstream."""


class ConfigError(ValueError):
    """A configuration can't be used; each line of the message names a place and what to write."""


class GatewayConfig(Section):
    """All that a gateway needs to know; made by `read_config`, or in Python.

    Args:
        upstreams: what generates, by name.
        models: what each model's name stands for.
        streaming: how streamed replies are sent.
        server: where it listens, and what it puts up with.
        keys: who may ask, by name; without any, everybody who reaches the loopback.
    """

    upstreams: dict[Name, UpstreamSpec] = Field(
        min_length=1, examples=["{main: {kind: openai, model: gpt-4.1-mini}}"]
    )
    models: dict[Name, ModelConfig] = Field(min_length=1, examples=["{mine: {upstream: main}}"])
    streaming: StreamingConfig = StreamingConfig()
    server: ServerConfig = ServerConfig()
    keys: dict[KeyName, KeyConfig] = Field(default_factory=dict[str, KeyConfig])

    @model_validator(mode="after")
    def _check_models(self) -> GatewayConfig:
        for name, model in self.models.items():
            for field, upstream in (("upstream", model.upstream), ("judge", model.judge)):
                if upstream is not None and upstream not in self.upstreams:
                    known = ", ".join(self.upstreams)
                    _misplaced(name, field, f"no upstream has this name; there is: {known}")
            if model.requirements and not self.upstreams[model.judge or model.upstream].judges:
                what = "its upstream can't judge; write judge: NAME of one that can, or say it as"
                _misplaced(name, "requirements", f"{what} checks")
            if model.budget is not None and model.budget.money is not None:
                self._check_money(name, model)
        return self

    def _check_money(self, name: str, model: ModelConfig) -> None:
        for used in dict.fromkeys((model.upstream, model.judge or model.upstream)):
            upstream = self.upstreams[used]
            if upstream.price is None:
                what = f"upstreams.{used} has no price; write price: [0.15, 0.60] there, for a"
                _misplaced(name, "budget.money", f"{what} million tokens in and out")
            named = model.upstream_model if used == model.upstream else None
            if isinstance(upstream, OpenAIUpstream) and (upstream.model or named) is None:
                what = f"upstreams.{used} needs its model: NAME for that"
                _misplaced(name, "budget.money", what)


def _misplaced(model: str, field: str, what: str) -> NoReturn:
    """Refuse what stands in a model's field because of what stands elsewhere."""
    place = {"where": f"models.{model}.{field}", "path": ("models", model, *field.split("."))}
    kind = "misplaced"
    raise PydanticCustomError(kind, "{where}: {what}", {**place, "what": what})


def read_config(
    path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None
) -> GatewayConfig:
    """Read a configuration's file.

    Args:
        path: a YAML file.
        environ: the environment's variables; by default the process's.

    Returns:
        The configuration.

    Raises:
        ConfigError: the file can't be read, or something in it is wrong: the message names the file
            and, on a line each, the place and what to write. It shows no value.
        ImportError: PyYAML is not installed.
    """
    from mellea_like.gateway.config.yaml_text import Mistake, parse  # noqa: PLC0415 (an extra)

    file = Path(path)
    variables = os.environ if environ is None else environ
    try:
        document = parse(_text_of(file), variables)
    except Mistake as mistake:
        raise ConfigError(_line(file, mistake.line, mistake.path, mistake.message)) from None
    data: object = document.data
    if not isinstance(data, dict):
        what = "it has upstreams: and models:, each with names and what they stand for"
        raise ConfigError(_line(file, None, (), what))
    context = {"directory": file.parent, "environ": variables}
    try:
        return GatewayConfig.model_validate(cast("dict[str, Any]", data), context=context)
    except ValidationError as exc:
        lines = [_problem(file, document, error) for error in exc.errors(include_input=False)]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as exc:
        msg = f"{file}: can't be read: {exc.strerror or exc}"
        raise ConfigError(msg) from None
    if len(content) > MAX_BYTES:
        msg = f"{file}: it is larger than {MAX_BYTES} bytes"
        raise ConfigError(msg)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as exc:
        msg = f"{file}: it isn't UTF-8 text, from byte {exc.start} on"
        raise ConfigError(msg) from None


def _problem(file: Path, document: Document, error: ErrorDetails) -> str:
    misplaced = error.get("ctx", {}) if error["type"] == "misplaced" else {}
    message = document.hide(misplaced.get("what") or message_of(error))
    path: list[str | int] = []
    data: Any = document.data
    for step in misplaced.get("path") or error["loc"]:
        if step == "[key]":
            message = f"this can't be its name: {message}"
        inside = _has(data, step)
        # A union's errors name its member, which isn't part of the file.
        if inside or isinstance(step, int):
            path.append(step)
            data = data[step] if inside else None
    lines = (document.lines.get(tuple(path[:length])) for length in range(len(path), 0, -1))
    line = next((line for line in lines if line is not None), None)
    return _line(file, line, tuple(path), message)


def _has(data: object, step: str | int) -> bool:
    if isinstance(data, list):
        return isinstance(step, int) and step < len(cast("Sequence[Any]", data))
    return isinstance(data, dict) and step in data


def _line(file: Path, line: int | None, path: tuple[str | int, ...], message: str) -> str:
    place = f"{file}" if line is None else f"{file}, line {line}"
    where = ".".join(map(str, path))
    return f"{place}: {where}: {message}" if where else f"{place}: {message}"
