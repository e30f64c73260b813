"""The command line of the examples."""

from pathlib import Path

import pytest

from examples.running import start

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/*.py"))


def started(monkeypatch, *arguments: str) -> list[str]:
    """Return what a command line with these arguments did."""
    done: list[str] = []

    def write() -> None:
        """Write the 3 % of it."""
        done.append("written")

    monkeypatch.setattr("sys.argv", ["bellow.py", *arguments])
    start("A bellow bends.", lambda: done.append("run"), geometry=write)
    return done


def test_options_say_what_is_done(monkeypatch):
    """Run the example, or what an option names in its place."""
    assert started(monkeypatch) == ["run"] and started(monkeypatch, "--geometry") == ["written"]


@pytest.mark.parametrize(
    ("argument", "code", "said"),
    [("--help", 0, "A bellow bends."), ("--help", 0, "Write the 3 % of it."), ("--geometri", 2, "--geometri")],
)
def test_nothing_is_done_where_help_is_asked_for_or_an_option_is_not_known(monkeypatch, capsys, argument, code, said):
    """Show what there is, or name what there is not, and end."""
    with pytest.raises(SystemExit) as ended:
        started(monkeypatch, argument)
    assert ended.value.code == code and said in "".join(capsys.readouterr())
    with pytest.raises(SystemExit):
        started(monkeypatch, "--geo")  # half of a name may be meant to be another one


def test_an_example_without_options_has_help(monkeypatch, capsys):
    """Show what it does."""
    monkeypatch.setattr("sys.argv", ["net.py", "--help"])
    with pytest.raises(SystemExit):
        start("A net catches a shell.", lambda: pytest.fail("it ran"))
    assert "A net catches a shell." in capsys.readouterr().out


def test_every_example_has_this_command_line():
    """Look for it wherever an example runs by itself."""
    alone = [path for path in EXAMPLES if "__main__" in path.read_text(encoding="utf-8")]
    assert len(alone) > 10
    assert not [path.name for path in alone if "    start(__doc__, main" not in path.read_text(encoding="utf-8")]
