"""The commands."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import typer

from mellea_like.cli import export, plan, report, serve, watch
from mellea_like.cli.batch import options as batch
from mellea_like.cli.exits import Problem
from mellea_like.cli.option_fields import add_command
from mellea_like.cli.sample import command as sample

if TYPE_CHECKING:
    from mellea_like.cli.signals import SignalHandler

__all__ = ["app"]

app = typer.Typer(
    name="mellea-like",
    help="Results from language models that meet stated requirements.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 (typer's signature)
    if wanted:
        typer.echo(f"mellea-like {version('mellea-like')}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    *,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    del show_version


def _run_batch(options: batch.BatchOptions, signals: SignalHandler) -> int:
    """Run the command."""
    try:
        from mellea_like.cli.batch.command import run_batch  # noqa: PLC0415 (jinja2, and all of a batch)
    except ModuleNotFoundError as exc:
        msg = f"batch needs {exc.name}: pip install 'mellea-like[cli]'"
        raise Problem(msg) from exc
    return run_batch(options, signals)


add_command(app, "sample", sample.SampleOptions, sample.run, help=sample.HELP, epilog=sample.EPILOG)
add_command(app, "batch", batch.BatchOptions, _run_batch, help=batch.HELP, epilog=batch.EPILOG)
add_command(
    app,
    "watch",
    watch.WatchOptions,
    watch.run,
    help=watch.HELP,
    epilog=watch.EPILOG,
    cls=watch.WatchCommand,
)
add_command(app, "report", report.ReportOptions, report.run, help=report.HELP, epilog=report.EPILOG)
add_command(app, "export", export.ExportOptions, export.run, help=export.HELP, epilog=export.EPILOG)
add_command(app, "plan", plan.PlanOptions, plan.run, help=plan.HELP, epilog=plan.EPILOG)
add_command(app, "serve", serve.ServeOptions, serve.run, help=serve.HELP, epilog=serve.EPILOG)
