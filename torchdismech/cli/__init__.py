"""The typer application of the command line, with all its commands.

Commands import torch and other slow modules in their bodies, so that --help and mistyped options are answered at once.
Signals are handled by `system/interrupts.py`, which `__main__.py` installs before it imports this package.
"""

from __future__ import annotations

from typing import Annotated

import typer

from torchdismech.cli.pictures import export, movie, plot, view
from torchdismech.cli.programs import OTHERS_OPTIONS, demo, evaluate, train
from torchdismech.cli.runs import check, follow, modes, simulate

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's tables would take longer to import than all else that --help needs
)
for command in (demo, simulate, check, modes, follow, plot, movie, export, view):
    app.command()(command)
for command in (train, evaluate):
    app.command(context_settings=OTHERS_OPTIONS)(command)


def _print_version(asked: bool) -> None:
    if asked:
        from torchdismech.cli.ending import table
        from torchdismech.io.about import versions

        print(table(versions()))
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print what runs here, and end.")
    ] = False,
) -> None:
    """Many soft robots at once: simulate a scene file, check it, draw what came out."""
