"""The command line, as `python -m torchdismech` and as the program `torchdismech`."""

import gc

from torchdismech.system import interrupts


def main() -> None:
    """Run the command line; signals are answered before anything that takes time is imported."""
    interrupts.install()
    from torchdismech.cli import app
    from torchdismech.cli.ending import printing

    try:
        with printing():
            app()
    finally:
        interrupts.ignore()
        gc.freeze()  # the process ends anyway: a last collection through torch's objects would take half a second


if __name__ == "__main__":
    main()
