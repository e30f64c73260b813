"""The README's own code."""

import re
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_code_block_runs(tmp_path, monkeypatch, capsys):
    """Run the README's Python block and find what it promises."""
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})
    assert (tmp_path / "rods.h5").exists()
    assert "torch.Size([11, 8, 41, 3])" in capsys.readouterr().out


def test_the_command_lines_exist():
    """Name only subcommands that the command line has."""
    from typer.main import get_command

    from torchdismech.cli import app

    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"^torchdismech (\w+)", README.read_text(encoding="utf-8"), flags=re.MULTILINE)) <= known
