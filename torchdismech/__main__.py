"""The command line, as `python -m torchdismech` and as the program `torchdismech`."""

from torchdismech import interrupts


def main() -> None:
    """Run the command line; signals are answered before anything that takes time is imported."""
    interrupts.install()
    from torchdismech.cli import app

    try:
        app()
    finally:
        interrupts.ignore()


if __name__ == "__main__":
    main()
