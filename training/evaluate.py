"""Evaluate a run on recordings that training never saw: `python -m training.evaluate RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchdismech.system.interrupts import install, say_at_the_end
from training.ending import refusing

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    settings: Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="E.g. data.path=...")] = [],  # noqa: B006
    stage: Annotated[str | None, typer.Option(help="The weights that this stage ended with, e.g. constants.")] = None,
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Run Python that the config names.")] = False,
) -> None:
    """Evaluate a run and print a table."""
    install()
    say_at_the_end(f"weights and checkpoints in {folder} stay as they were: start the evaluation again")
    from training.reports.evaluation import evaluate

    with refusing():
        errors = evaluate(folder, settings, stage, allow_code)
    horizons = errors["model"].horizons
    print("mean absolute errors of a coordinate [mm]")
    print(f"{'':10}{'mean':>12}" + "".join(f"{f'at {h:g} s':>12}" for h in horizons) + f"{'failed':>8}")
    for name, error in errors.items():
        cells = "".join(f"{1e3 * value:12.2f}" for value in (error.mean, *(error.at(h) for h in horizons)))
        print(f"{name:10}{cells}{error.failed:8}")


if __name__ == "__main__":
    app()
