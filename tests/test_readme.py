"""The code in the pages of docs/, and the commands in all of them; tests/examples/test_basics.py has the README's."""

import re
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


def test_the_code_on_gradients_runs():
    """Run the block of docs/gradients.md: three steps of an optimiser bring the tip closer to where it shall be."""
    text = (ROOT / "docs" / "gradients.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict = {"__name__": "gradients"}
    exec(compile(block, "gradients.md", "exec"), names)
    assert names["stiffness"].log_factor.item() != 0.0
    assert names["stiffness"].log_factor.grad is not None


def test_the_code_on_shells_runs():
    """Run the block of docs/shells.md: the sheet sinks."""
    text = (ROOT / "docs" / "shells.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict = {"__name__": "shells"}
    exec(compile(block, "shells.md", "exec"), names)
    trajectory = names["trajectory"]
    assert not trajectory.failed.any() and trajectory.positions[-1, 0, :, 2].min() < -0.05


def test_the_code_on_materials_runs():
    """Run the block of docs/materials.md: the cable keeps a bend, silicone creeps back, the elastic rod is straight."""
    text = (ROOT / "docs" / "materials.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict = {"__name__": "materials"}
    exec(compile(block, "materials.md", "exec"), names)
    assert abs(names["elastic"]) < 1e-4
    assert names["cable"] < names["silicone"] < -3e-3


def test_the_code_on_magnetics_runs():
    """Run the block of docs/magnetics.md: the stronger the field, the more a beam follows."""
    text = (ROOT / "docs" / "magnetics.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict = {"__name__": "magnetics"}
    exec(compile(block, "magnetics.md", "exec"), names)
    heights = names["run"].positions[-1, :, -1, 2]
    assert not names["run"].failed.any() and (heights.diff() > 0).all() and heights[-1] > 0.1


def test_the_code_on_control_runs():
    """Run the blocks of docs/control.md: tips come from 5 cm off to within 1 cm; one of one's own runs."""
    text = (ROOT / "docs" / "control.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict = {"__name__": "control"}
    exec(compile(first, "control.md", "exec"), names)
    tips = (names["rest"].positions[:, :, -1] - names["arc"][-1]).norm(dim=-1)
    assert (tips[-1] < 0.2 * 0.05).all() and names["gain"].log_factor.grad is not None
    assert repr(names["loop"]) in first
    exec(compile(second, "control.md", "exec"), names)
    model, start = names["model"], names["model"].initial_state(2)
    run = names["rollout"](model, start, names["ImplicitEuler"](0.01), 2, controller=names["Integral"]())
    assert run.memory["sum"].shape == (2,)


def test_the_code_on_modes_runs():
    """Run the block of docs/modes.md: pairs of modes of two robots, the stiffer one faster, little damping."""
    text = (ROOT / "docs" / "modes.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL).group(1)
    names: dict = {"__name__": "modes"}
    exec(compile(block, "modes.md", "exec"), names)
    found = names["found"]
    assert found.stable.all() and (found.frequency[1] > found.frequency[0]).all()
    assert (found.damping_ratio > 0).all() and (found.damping_ratio < 0.2).all()


def test_the_command_lines_exist():
    """Name only subcommands that the command line has, in the README and in all pages."""
    from typer.main import get_command

    from torchdismech.cli import app

    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    for page in (README, *(ROOT / "docs").glob("*.md")):
        assert set(re.findall(r"^torchdismech (\w+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)) <= known


def test_the_code_on_tendons_runs():
    """Run the block of docs/tendons.md: the arm goes to the side of the tendon that is taken in."""
    text = (ROOT / "docs" / "tendons.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL).group(1)
    names: dict = {"__name__": "tendons"}
    exec(compile(block, "tendons.md", "exec"), names)
    assert not names["run"].failed.any()
    assert names["run"].positions[-1, 0, -1, 0] > 0.02


def test_contact_page_runs():
    """Run the blocks of docs/contact.md, one after the other: rods on a ball and a floor, named parts, points."""
    text = (ROOT / "docs" / "contact.md").read_text(encoding="utf-8")
    first, *others = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict = {}
    exec(compile(first, "contact.md", "exec"), names)
    contact = names["trajectory"].contact
    assert (names["trajectory"].status == 0).all()
    assert int(contact["active"][-1]) > 3
    assert 0 < float(contact["penetration"].max()) < 5e-4
    for block in others:
        exec(compile(block, "contact.md", "exec"), names)
    assert len(others) == 3 and int(names["info"].contact["active"]) == 1


def test_environments_page_runs():
    """Run the block of docs/environments.md: arms that do not act hang, and each number bends all of its arm."""
    text = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict = {}
    exec(compile(block, "environments.md", "exec"), names)
    environment = names["environment"]
    assert names["observation"].shape == (256, 9) and not names["outcome"].ended.any()
    for number in range(2):
        environment.reset()
        action = torch.zeros(256, 2)
        action[:, number] = 1.0
        for _ in range(10):
            environment.step(action)
        strains = names["model"].strains(environment.current.state)
        bent = [strains[f"kappa{k}"][0, : names["springs"]].sum() for k in (1, 2)]
        assert bent[number] > 1.0 and abs(bent[1 - number]) < 1e-3
