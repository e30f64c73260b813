"""Scenes that are refused by file and key, with exit status 2 and without a traceback."""

from typer.testing import CliRunner

from torchdismech.cli import app


def refused(path) -> str:
    """Return what `check` says about a scene that it refuses, on one line."""
    result = CliRunner().invoke(app, ["check", str(path)])
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output and result.stderr.startswith("error: ")
    assert result.stdout == ""
    return result.stderr


def assert_refused(folder, text, *words) -> None:
    """Check that a scene is refused by its file, in a message with these words in this order."""
    path = folder / "scene.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refused(path)
    assert str(folder) in message
    position = 0
    for word in words:
        assert word in message[position:], message
        position = message.index(word, position)
