"""The code in the pages of docs/, and the commands in all of them; tests/examples/test_basics.py has the README's."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    RobotBuilder,
    Static,
    Trajectory,
    modes,
    straight,
    unroll,
)
from torchdismech.forces import Gravity, LocalForce
from torchdismech.rigid import natural_frequencies
from training.data import read
from training.system import System

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


def blocks_of(page: str) -> list[str]:
    """Return the blocks of Python on a page of docs/, from top to bottom."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def after_each_block(page: str) -> Iterator[dict[str, Any]]:
    """Run the blocks of a page in one namespace, as a reader does who copies one after the other; yield it each time.

    So all that a block needs is imported and defined in it, or above it on the same page.
    """
    names: dict[str, Any] = {"__name__": page.removesuffix(".md")}
    for block in blocks_of(page):
        exec(compile(block, page, "exec"), names)
        yield names


def after_the_only_block(page: str) -> dict[str, Any]:
    """Return the names on a page that has one block of Python."""
    (names,) = after_each_block(page)
    return names


def test_the_code_on_gradients_runs():
    """Run the blocks of docs/gradients.md: three steps of an optimiser change the stiffness, and a file keeps that."""
    *_, names = after_each_block("gradients.md")
    assert names["stiffness"].log_factor.item() != 0.0
    assert names["stiffness"].log_factor.grad is not None
    trained, loaded = (model.term("bend_twist").energy.EI1 for model in (names["model"], names["loaded"]))
    assert torch.equal(trained, loaded)
    torch.save(names["model"], names["file"])
    whole = torch.load(names["file"], weights_only=False)
    assert torch.equal(whole.term("bend_twist").energy.EI1, trained)


def test_the_code_on_scenes_runs(monkeypatch):
    """Run the block of docs/scene.md beside the demo: its key takes the place of the file's, its force is added."""
    monkeypatch.chdir(ROOT / "torchdismech")
    names = after_the_only_block("scene.md")
    assert names["run"].batch == 4 and not names["run"].failed.any()
    assert [type(force).__name__ for force in names["setup"].model.forces][-1] == "MassDamping"


def test_the_code_on_rods_runs():
    """Run the blocks of docs/rods.md: a ring has a spring at each node, a rod that is let go falls."""
    run = after_each_block("rods.md")
    names = next(run)
    assert len(names["model"].rod_edges) == len(names["model"].springs) == names["count"]
    names = next(run)
    held, fallen = (names[which].positions[-1, 0, 0, 2] for which in ("before", "after"))
    assert held == 0 and fallen < -0.04 and next(run, None) is None


def test_the_code_on_what_is_missing_runs():
    """Run the block of docs/features.md: a payload makes a chain slower."""
    names = after_the_only_block("features.md")
    alone, loaded = (natural_frequencies(names[which], 1).item() for which in ("chain", "loaded"))
    root = 1.4200  # the least of 1 + cos x cosh x + x (cos x sinh x - sin x cosh x) / 2: a payload of half the mass
    assert loaded / alone == pytest.approx((root / 1.875104) ** 2, rel=0.01)


def test_the_code_on_shells_runs():
    """Run the block of docs/shells.md: the sheet sinks."""
    names = after_the_only_block("shells.md")
    trajectory = names["trajectory"]
    assert not trajectory.failed.any() and trajectory.positions[-1, 0, :, 2].min() < -0.05


def test_the_code_on_materials_runs():
    """Run the block of docs/materials.md: the cable keeps a bend, silicone creeps back, the elastic rod is straight."""
    names = after_the_only_block("materials.md")
    assert abs(names["elastic"]) < 1e-4
    assert names["cable"] < names["silicone"] < -3e-3


def test_the_code_on_magnetics_runs():
    """Run the block of docs/magnetics.md: the stronger the field, the more a beam follows."""
    names = after_the_only_block("magnetics.md")
    heights = names["run"].positions[-1, :, -1, 2]
    assert not names["run"].failed.any() and (heights.diff() > 0).all() and heights[-1] > 0.1


def test_the_code_on_control_runs():
    """Run the blocks of docs/control.md: tips come from 5 cm off to within 1 cm; one of one's own runs."""
    run = after_each_block("control.md")
    names = next(run)
    tips = (names["rest"].positions[:, :, -1] - names["arc"][-1]).norm(dim=-1)
    assert (tips[-1] < 0.2 * 0.05).all() and names["gain"].log_factor.grad is not None
    assert repr(names["loop"]) in blocks_of("control.md")[0]
    names = next(run)
    model, start = names["model"], names["model"].initial_state(2)
    run = names["rollout"](model, start, names["ImplicitEuler"](0.01), 2, controller=names["Integral"]())
    assert run.memory["sum"].shape == (2,)


def test_the_code_on_modes_runs():
    """Run the blocks of docs/modes.md: pairs of modes of two robots, the stiffer one faster; an arch snaps through."""
    *_, names = after_each_block("modes.md")
    found, path = names["found"], names["path"]
    assert found.stable.all() and (found.frequency[1] > found.frequency[0]).all()
    assert (found.damping_ratio > 0).all() and (found.damping_ratio < 0.2).all()
    assert path.reached.all() and len(path.limits(robot=0)) == 2 and path.limits(robot=0)[0] > 0


def test_the_code_on_questions_runs():
    """Run the blocks of docs/questions.md, each of whose results has a closed form or a robot that is built so."""
    run = after_each_block("questions.md")
    names = next(run)
    bending = 1e7 * math.pi / 4 * 4e-3**4
    names = next(run)
    state, model = names["state"], names["model"]
    last = state.positions[0, -1] - state.positions[0, -2]
    assert names["pitch"].item() == pytest.approx(math.atan2(last[2], last[0])) and names["pitch"] < -0.3
    torch.testing.assert_close(names["turned"] @ torch.tensor([1.0, 0, 0]).double(), last / last.norm())
    names = next(run)
    weights, x = 9.81 * model.body.node_mass().flatten(), state.positions[0, :, 0]
    moments = torch.stack([(weights * (x - held).clamp(min=0)).sum() for held in x[:-1]])
    # of an angle phi the moment is EI 2 tan(phi / 2) / cos(phi / 2)^2 over the length: 6e-4 more at .05 rad
    torch.testing.assert_close(-bending * names["at_clamp"], moments[:1], rtol=1e-3, atol=0)
    torch.testing.assert_close(-bending * names["at_nodes"][0], moments[1:], rtol=3e-3, atol=1e-9)
    assert next(run)["ratio"] == pytest.approx(0.05, rel=1e-6)
    names = next(run)
    by_hand, by_force = names["by_hand"], names["by_force"]
    assert by_hand.positions[-1, 0, 0, 2].item() == pytest.approx(0.01 * math.sin(2.0))
    over = by_hand.positions[-1, 0, 1] - by_hand.positions[-1, 0, 0]  # half an edge from where its direction is held
    assert math.atan2(-over[2], over[0]) == pytest.approx(0.5 * math.sin(2.0), abs=0.03)
    at_rest = 1e-3 * math.sin(0.4) * 0.2**3 / (3 * bending)
    assert by_force.positions[-1, 0, -1, 2].item() == pytest.approx(at_rest, rel=0.1)  # it rings, as it began in a jerk
    names = next(run)
    swing = math.sqrt(1.5 * 9.81 / 0.2) / (2 * math.pi)
    assert names["swings"][0].item() == pytest.approx(swing, rel=5e-3) and names["swings"][1] > 5 * swing  # 10 edges
    assert abs(next(run)["miss"].item()) < 1e-9
    names = next(run)
    for robot, length in enumerate((0.2, 0.3)):
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 0), (length, 0, 0), 21), Circle(4e-3), Material(1e7, 1100.0))
        builder.clamp(nodes=[0], direction="rest")
        builder.add_force(Gravity((0, 0, -9.81)))
        alone = builder.finalize()
        built, _ = Static().step(alone, alone.initial_state(), throw=True)
        # both balances are found to a millionth of the load
        torch.testing.assert_close(names["state"].positions[robot], built.positions[0], rtol=0, atol=1e-6)
    # what it still swings after a second, e^-10 of 7 cm, and the balance of the robot that was built so long
    torch.testing.assert_close(next(run)["grown"].positions[-1, 0], built.positions[0], rtol=0, atol=1e-4)
    names = next(run)
    chosen = names["arm"](Gravity((0, 0, -9.81)), youngs=names["youngs"][names["robots"]])
    built = unroll(chosen, chosen.initial_state(8), ImplicitEuler(1e-2), 3)
    torch.testing.assert_close(names["seen"], built.positions, rtol=0, atol=1e-9)
    names = next(run)
    mass = names["model"].body.node_mass().flatten().split(21)
    assert mass[0].sum().item() == pytest.approx(1100.0 * math.pi * 0.2 * 7e-6)
    assert mass[1].sum().item() == pytest.approx(1100.0 * math.pi * 0.2 * 13e-6, rel=1e-3)  # a cone in 20 cylinders
    with pytest.warns(RuntimeWarning, match="the matrix of each robot is full"):
        names = next(run)
    assert 1.010e5 < names["inside"].item() < 1.013e5 - 50
    x = names["state"].positions.clone().requires_grad_()
    volume = names["volume"](x, names["triangles"])
    (push,) = torch.autograd.grad((names["content"] * volume.log() - 1.010e5 * volume).sum(), x)
    (gas,) = names["model"].forces
    on_nodes = names["model"].free & (torch.arange(names["model"].n_dofs) < x.numel())
    torch.testing.assert_close(gas(names["state"], Control())[0, on_nodes], push.flatten()[on_nodes[: x.numel()]])
    assert next(run, None) is None


def test_the_command_lines_exist():
    """Name only subcommands that the command line has, in the README and in all pages."""
    from typer.main import get_command

    from torchdismech.cli import app

    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    for page in (README, *(ROOT / "docs").glob("*.md")):
        assert set(re.findall(r"^torchdismech (\w+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)) <= known


def test_the_code_on_looking_at_runs_runs(tmp_path, monkeypatch):
    """Run the block of docs/looking.md, which writes a picture, a movie and a file for Blender."""
    pytest.importorskip("PIL")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    names = after_the_only_block("looking.md")
    assert len(names["figure"].axes) >= 2
    assert {path.name for path in tmp_path.iterdir()} == {"run.png", "run.gif", "run.glb"}


def test_the_code_on_tendons_runs():
    """Run the blocks of docs/tendons.md: the arm goes to the side of the tendon that is taken in, and that is taut."""
    *_, names = after_each_block("tendons.md")
    assert not names["run"].failed.any()
    assert names["run"].positions[-1, 0, -1, 0] > 0.02
    first, second = names["tensions"][0].unflatten(0, (2, 16))
    assert 0.0 < second.max() < first.min() < 5.0  # by its own constants the second has 250 N


def test_contact_page_runs():
    """Run the blocks of docs/contact.md: rods on a ball and a floor, named parts, points, a cube that is lifted."""
    run = after_each_block("contact.md")
    names = next(run)
    contact = names["trajectory"].contact
    assert (names["trajectory"].status == 0).all()
    assert int(contact["active"][-1]) > 3
    assert 0 < float(contact["penetration"].max()) < 5e-4
    for _ in range(3):
        names = next(run)
    corners = names["trajectory"].positions[:, 0, names["cube"]]
    weight = 9.81 * names["mass"]
    assert corners[-1, :, 2].mean() == pytest.approx(0.05, abs=1e-4)  # the fingers bend, and the grip creeps
    sizes = torch.cdist(corners, corners)
    assert (sizes - sizes[0]).abs().max() < 2e-6
    assert names["trajectory"].contact["force/part0"][-1, 0, 2] == pytest.approx(weight, rel=1e-6)
    check_that_a_box_is_solid(next(run))
    assert len(list(run)) == 1 and int(names["info"].contact["active"]) == 1


def check_that_a_box_is_solid(names) -> None:
    """Hang the box of docs/contact.md up by a corner: it swings as a solid box about an end of its diagonal does."""
    builder, box, side = names["builder"], names["box"], names["side"] - 2 * names["rounding"]
    builder.clamp(nodes=[int(box[0])])
    down = -names["mesh"].vertices[0] / np.linalg.norm(names["mesh"].vertices[0])
    builder.add_force(Gravity(9.81 * down))
    model = builder.finalize()
    hanging, _ = Static().step(model, model.initial_state())
    frequency = modes(model, hanging, 3).frequency[0, 1:]
    expected = math.sqrt(9.81 * math.sqrt(0.75) * side / ((1 / 6 + 3 / 4) * side**2)) / (2 * math.pi)
    # 1 %: shell and rods weigh 1.7 % of it, where they are
    assert frequency.tolist() == pytest.approx([expected, expected], rel=0.01)


def test_environments_page_runs(tmp_path, monkeypatch):
    """Run the blocks of docs/environments.md: arms that do not act hang, each number bends all of its arm."""
    monkeypatch.chdir(tmp_path)
    *_, names = after_each_block("environments.md")
    environment = names["environment"]
    assert names["observation"].shape == (256, 9) and not names["outcome"].ended.any()
    assert (names["action"].grad != 0).all()
    assert all((weights.grad != 0).any() for weights in names["policy"].parameters())
    assert all(0.05 < distance < 0.3 for distance in names["distances"])  # of arms of 0.2 m that hang
    assert Trajectory.load("episode.h5").time.tolist() == pytest.approx([0.04 * k for k in range(6)])
    for number in range(2):
        environment.reset()
        action = torch.zeros(256, 2)
        action[:, number] = 1.0
        for _ in range(10):
            environment.step(action)
        strains = names["model"].strains(environment.current.state)
        bent = [strains[f"kappa{k}"][0, : names["springs"]].sum() for k in (1, 2)]
        assert bent[number] > 1.0 and abs(bent[1 - number]) < 1e-3


def test_the_code_on_linear_solvers_runs():
    """Run the block of docs/architecture.md: running rows are solved, the others are zeros."""
    names = after_the_only_block("architecture.md")
    x, dense = names["x"], names["pattern"].to_dense(names["values"])
    torch.testing.assert_close((dense @ x[:, :, None])[:3, :, 0], names["rhs"][:3])
    assert not x[3].any() and names["factor"].ok[:3].all()


def test_the_code_on_stencils_runs():
    """Run the block of docs/extending.md, which checks its stencil: strings of 50 N/m bear a rod of a few grams."""
    names = after_the_only_block("extending.md")
    longer = names["strings"].strain(names["strings"].local(names["state"].q.t()), 0.1)[0]
    held = names["model"].energies(names["state"])["strings"]
    torch.testing.assert_close(held, 25.0 * longer.square().sum(0))  # half of the stiffness


def test_the_code_on_rigid_elements_runs(tmp_path, monkeypatch):
    """Run the block of docs/rigid_elements.md, which writes a file: the softest chain sags most."""
    monkeypatch.chdir(tmp_path)
    names = after_the_only_block("rigid_elements.md")
    tips = names["trajectory"].positions[-1, :, -1, 2]
    assert not names["trajectory"].failed.any() and tips.max() < 0 and tips.argmin() == 0
    assert (tmp_path / "chain.h5").is_file()


MOTIVE = """Format Version,1.23,Take Name,Take 1

,,Marker,Marker,Marker,Marker,Marker,Marker
,,arm:1,arm:1,arm:1,arm:2,arm:2,arm:2
,,3C01,3C01,3C01,3C02,3C02,3C02
,,Position,Position,Position,Position,Position,Position
Frame,Time (Seconds),X,Y,Z,X,Y,Z
0,0.000000,100.0,200.0,300.0,150.0,200.0,300.0
1,0.008333,100.0,201.0,300.0,,,
2,0.016667,100.0,202.0,300.0,150.0,202.0,300.0
"""


def test_the_code_on_fits_runs(tmp_path, monkeypatch):
    """Run the blocks of docs/training.md: a table of markers from Motive, a force and a system with something to learn.

    test_terms.py fits the one.
    """
    monkeypatch.chdir(tmp_path)
    Path("motive.csv").write_text(MOTIVE)
    time = np.delete(0.01 * np.arange(30), [9, 10]) + 0.003 * np.sin(np.arange(28))  # two frames are missing
    columns = [time, 2 * time, 0 * time, np.where(time > 0.195, np.nan, 1 - time)]
    columns += [np.full(28, np.nan)] * 3  # the second marker is never seen
    np.savetxt("uneven.csv", np.column_stack(columns), delimiter=",", header="time,x0,y0,z0,x1,y1,z1", comments="")
    *_, names = after_each_block("training.md")
    assert issubclass(names["Drag"], LocalForce) and len([*names["Drag"](4).parameters()]) == 4
    assert issubclass(names["Chain"], System)
    markers = read("markers.csv")
    assert markers.positions[0, :, 0].tolist() == [[100.0, 200.0 + k, 300.0] for k in range(3)]  # [mm]
    even = read("even.csv")
    seen, clock = even.valid[0, :, 0].numpy(), time[0] + 0.01 * np.arange(even.positions.shape[1])
    assert np.flatnonzero(seen).tolist() == [*range(9), *range(12, 19)]  # what lies between frames that were seen
    assert even.positions[0, seen, 0].numpy() == pytest.approx(np.stack([2 * clock, 0 * clock, 1 - clock], 1)[seen])
    assert not even.valid[0, :, 1].any()
    assert markers.dt == pytest.approx(1 / 120, rel=1e-4) and (~markers.valid).nonzero().tolist() == [[0, 1, 1]]


@pytest.mark.slow
def test_the_code_on_pneumatic_arms_runs():
    """Run the first block of docs/pneumatic_arm.md: pushed arms touch the slope; the second plans, for minutes."""
    names = next(after_each_block("pneumatic_arm.md"))
    assert not names["trajectory"].failed.any()
    assert float(names["trajectory"].contact["force/slope"].norm(dim=-1).max()) > 0


def test_every_page_with_code_is_run():
    """Find a test here for each page that has blocks of Python, all of which are marked as Python."""
    tested = set(re.findall(r'after_(?:each|the_only)_block\("([a-z_]+\.md)"\)', Path(__file__).read_text("utf-8")))
    pages = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
    assert {name for name in pages if blocks_of(name)} == tested
    unmarked = [
        name for name, text in pages.items() if re.search(r"^```\n(from \w+ |import |\w+ = )", text, re.MULTILINE)
    ]
    assert not unmarked
