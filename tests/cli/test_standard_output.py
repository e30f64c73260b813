"""Standard output that cannot be written, or whose encoding lacks letters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")
COMMAND = (
    "import typer\nfrom torchdismech.cli.ending import printing, refusing\n"
    "app = typer.Typer()\napp.command()(refusing(lambda: print('words')))\nwith printing():\n    app()\n"
)


def run(*arguments, stdout=subprocess.PIPE, **environment):
    """Return what a Python process ended with."""
    done = subprocess.run(
        [sys.executable, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full, as Linux has it")
@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [(("-m", "torchdismech", "--help"), "1"), (("-m", "torchdismech", "--help"), ""), (("-c", COMMAND), "1")],
    ids=["help, at the print", "help, at the end", "a command"],
)
def test_unwritable_output_ends_in_a_sentence(arguments, unbuffered):
    """Say once that nothing can be printed, whether that shows at the print or at the end."""
    with FULL.open("w") as full:
        done = run(*arguments, stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: standard output cannot be written: No space left on device; send it elsewhere "
        "(files written by now are kept)"
    ]


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_closed_pipe_ends_it_quietly(unbuffered):
    """Say nothing to a reader that has what it wants."""
    reading, writing = os.pipe()
    os.close(reading)
    done = run("-m", "torchdismech", "--help", stdout=writing, PYTHONUNBUFFERED=unbuffered)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_letters_that_the_encoding_lacks_are_escaped():
    """Print names of files as far as the terminal's encoding goes."""
    code = "from torchdismech.cli.ending import printing\nwith printing():\n    print('scène α.toml')\n"
    assert run("-c", code, PYTHONIOENCODING="ascii").stdout == "sc\\xe8ne \\u03b1.toml\n"
