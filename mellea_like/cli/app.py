"""The typer application. A command's module is imported only when the command is used."""

from __future__ import annotations

import contextlib
import platform
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mellea_like.version import __version__

# The options of each command, and the first sentence of its help. The module of the options also
# has HELP, which is the rest of the help, EPILOG and run().
COMMANDS = {
    "sample": (
        "sample.command.SampleOptions",
        "Draw replies, several at a time, until one meets every requirement.",
    ),
    "batch": (
        "batch.options.BatchOptions",
        "Ask a model about every row of a file, many at a time, and retry each until it passes.",
    ),
    "batch status": (
        "batch.status.StatusOptions",
        "Show a run's jobs: their ages, their progress, and what they may cost.",
    ),
    "batch cancel": (
        "batch.cancel.CancelOptions",
        "Cancel a run's jobs, and keep the answers they already have.",
    ),
    "check": (
        "check.CheckOptions",
        "Check a file of existing replies, without drawing new ones.",
    ),
    "judge-agreement": (
        "judge_agreement.JudgeAgreementOptions",
        "Measure how well a judge agrees with people's labels, and with itself.",
    ),
    "watch": (
        "watch.WatchOptions",
        "Rerun a command when files change: once per burst of changes, and one run at a time.",
    ),
    "report": (
        "report.ReportOptions",
        "Show what happened in a run of many items, or in a single call.",
    ),
    "export": (
        "export.ExportOptions",
        "Make training data, or a table of all draws, from a run's journal.",
    ),
    "plan": (
        "plan.PlanOptions",
        "Estimate how many draws it takes for a given share of the items to pass.",
    ),
    "serve": ("serve.ServeOptions", "Serve OpenAI's chat API with replies that meet requirements."),
}


class Commands(TyperGroup):
    """The group of all commands. Its help lists the commands without importing their modules."""

    listing = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # For the list of commands; `command` makes the command itself.
        self.commands = {
            name: TyperCommand(name, help=sentence, rich_markup_mode="rich")
            for name, (_, sentence) in COMMANDS.items()
        }

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: D102 (click's)
        if self.listing or cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        return command(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: D102 (click's)
        two = " ".join(args[:2])
        if len(args) > 1 and two in COMMANDS:  # A file of that name can be called ./status.
            return two, self.get_command(ctx, two), args[2:]
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: D102 (click's)
        self.listing = True
        super().format_help(ctx, formatter)


def command(name: str) -> Any:
    """Import a command's module, and return the command."""
    from mellea_like.cli.option_fields import add_command  # noqa: PLC0415 (the list needs none)

    path, options = COMMANDS[name][0].rsplit(".", 1)
    module: Any = import_module(f"mellea_like.cli.{path}")
    alone = typer.Typer(**SETTINGS)
    add_command(
        alone,
        name,
        getattr(module, options),
        module.run,
        help=f"{COMMANDS[name][1]}\n\n{module.HELP}",
        epilog=module.EPILOG,
        cls=getattr(module, "COMMAND", None),
    )
    return typer.main.get_command(alone)


REPORTED = ("anyio", "trio", "pydantic", "openai", "httpx2", "starlette", "uvicorn", "ray")
"""The packages whose versions ``--version`` prints, for bug reports."""


def _show_version(wanted: bool) -> None:  # noqa: FBT001 (typer's signature)
    if wanted:
        typer.echo(f"mellea-like {__version__}")
        parts = [f"Python {platform.python_version()}", f"{sys.platform} {platform.machine()}"]
        for name in REPORTED:
            with contextlib.suppress(PackageNotFoundError):
                parts.append(f"{name} {version(name)}")
        typer.echo(f"for a bug report: {', '.join(parts)}")
        raise typer.Exit


SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": "rich",
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

app = typer.Typer(
    name="mellea-like",
    cls=Commands,
    help="Results from language models that meet stated requirements.",
    no_args_is_help=True,
    **SETTINGS,
)


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    *,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version, and the versions to include in a bug report.",
        ),
    ] = False,
) -> None:
    del show_version
