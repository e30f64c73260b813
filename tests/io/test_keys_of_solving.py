"""Keys of scenes for solvers, chunks and BDF2: runs are those of Python to the last bit."""

import pytest
import torch

from tests.io.robots_by_hand import EDGES, HEAD, NODES, SIMULATION, built, by_hand, same
from tests.scenes import run
from torchdismech import BDF2, Circle, ImplicitEuler, InputError, Material, RobotBuilder, State, forces
from torchdismech.io.run import run_scene
from torchdismech.solve import linear


@pytest.mark.parametrize(
    "solver", ["dense", "multifrontal", {"name": "banded", "method": "lapack"}, {"name": "pcg", "tolerance": 1e-3}]
)
def test_linear_solvers(load, solver):
    """Solve by the named solver with its options."""
    inline = f'"{solver}"' if isinstance(solver, str) else _inline(solver)
    scene = load(HEAD["rod"] + SIMULATION + f"solver = {inline}\n")
    found, expected = run(scene), by_hand(built("rod"), solver=solver)
    assert torch.equal(found.positions, expected.positions) and torch.equal(found.velocities, expected.velocities)
    model = scene.build().model  # solvers that are right may agree to the bit
    assert (model.solvers.name, model.solvers.options) == linear.named(solver)


def _inline(table):
    """Return a table as TOML."""
    return "{" + ", ".join(f"{k} = {v!r}" for k, v in table.items()).replace("'", '"') + "}"


@pytest.mark.parametrize(("given", "chunk"), [("2", 2), ('"auto"', "auto"), ('"all"', None)])
def test_chunk(load, given, chunk):
    """Step so many robots at a time."""
    drawn = '[batch]\nsize = 5\n[batch.randomize]\n"rod.youngs" = {values = [1e6, 2e6, 3e6, 4e6, 5e6]}\n'
    scene = load(HEAD["rod"] + SIMULATION + f"chunk = {given}\n" + drawn)
    assert scene.build().integrator.chunk == chunk
    builder = RobotBuilder()
    youngs = torch.tensor([[1e6], [2e6], [3e6], [4e6], [5e6]], dtype=torch.float64)
    builder.add_rods(NODES, EDGES, Circle(5e-3), Material(youngs, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity([1.0, 2.0, -9.81]))
    expected = by_hand(builder, ImplicitEuler(0.01, chunk=chunk))
    assert torch.equal(run(scene).positions, expected.positions)


def test_bdf2(load, tmp_path):
    """Step by BDF2; its runs are written and resumed, with what it remembers, to the last bit."""
    text = HEAD["rod"] + SIMULATION + 'integrator = "bdf2"\n'
    scene = load(text)
    assert type(scene.build().integrator) is BDF2
    same(run(scene), by_hand(built("rod"), BDF2(0.01)), by_hand(built("rod")))
    whole, path = run(scene), tmp_path / "run.h5"
    half = load(text, {"simulation.duration": 0.03})
    run_scene(half, half.build(), path)
    scene = load(text)
    resumed, first = run_scene(scene, scene.build(), path, resume=path)
    assert first == 3 and torch.equal(resumed.positions[-1], whole.positions[-1])
    again = load(HEAD["rod"] + SIMULATION + '[initial]\ntrajectory = "run.h5"\n').build().state
    assert type(again) is State and torch.equal(again.q, resumed.state.q)
    other = load(HEAD["rod"] + SIMULATION.replace("0.05", "0.1"))
    with pytest.raises(InputError, match="was written by another kind of integrator"):
        run_scene(other, other.build(), path, resume=path, force_resume=True)
