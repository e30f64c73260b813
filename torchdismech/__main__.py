"""`python -m torchdismech` is the command line."""

from torchdismech.cli import app

app()
