"""Robots that begin inside of obstacles are warned of by name; those that rest in them are not."""

import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.rods import rod_through
from torchdismech import Circle, ImplicitEuler, Material, Static, forces, rollout, straight, unroll
from torchdismech.cli import app
from torchdismech.contact import Box, Complementarity, HalfSpace, Obstacle, Penalty, Sphere

RADIUS = 2e-3
RESPONSES = {"penalty": lambda: Penalty(10.0, 1e-3), "complementarity": Complementarity}
SHAPES = {
    "half-space": lambda: HalfSpace((0, 0, 0.5), (0, 0, 1)),
    "sphere": lambda: Sphere((0.1, 0, 0), 0.5),
    "box": lambda: Box((0.1, 0, 0), (1, 1, 1)),
}


def rod(shape, response, held="not", start=(0, 0, 0), end=(0.2, 0, 0)):
    """Return a rod of four edges with weight and something that it touches, by the name "ground"."""
    points, material = straight(start, end, 5), Material(2e6, 1100.0)
    builder = rod_through(points, Circle(RADIUS), material, [forces.Gravity((0, 0, -9.81))], held=held)
    builder.add_contact(Obstacle(shape, response, name="ground"))
    return builder.finalize()


@pytest.mark.parametrize("run", [rollout, unroll])
@pytest.mark.parametrize("response", RESPONSES.values(), ids=RESPONSES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_robots_inside_are_named(run, shape, response):
    """Name obstacle, node, robot and depth when a run begins."""
    model = rod(shape(), response())
    state = model.initial_state(2)
    lifted = state.q.clone()
    lifted[0, 2:15:3] += 2.0  # out of each of them
    state = model.initial_state(2, q=lifted)
    with pytest.warns(RuntimeWarning, match=r"obstacle 'ground' \(\w+\): node \d of robot 1 begins inside .* 0.502 m"):
        run(model, state, ImplicitEuler(1e-2), 1)


def test_overlaps_are_said_once():
    """Say the same to callers at two lines once, at the line of the library."""
    model = rod(HalfSpace((0, 0, 0.5), (0, 0, 1)), Penalty(10.0, 1e-3))
    method, state = ImplicitEuler(1e-2), model.initial_state()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        method.prepare(model, state, 1)
        method.prepare(model, state, 1)
    assert [Path(warning.filename).name for warning in said] == ["initial_overlap.py"]


def test_points_between_nodes_are_named():
    """Name the nodes that a point lies between, where these are outside."""
    builder = rod_through(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(RADIUS), Material(2e6, 1100.0), held="not")
    builder.add_contact(Obstacle(Sphere((0.025, 0, 2e-3), 0.02), Penalty(10.0, 1e-3), name="ball", spacing=0.03))
    model = builder.finalize()
    with pytest.warns(RuntimeWarning, match="obstacle 'ball' .*: point between nodes 0, 1 of robot 0 begins inside"):
        rollout(model, model.initial_state(), ImplicitEuler(1e-3), 1)


def test_robots_at_rest_are_not_warned_of():
    """Let a rod sink into a soft floor, to rest deeper than its radius: found as an equilibrium, and by a fall."""
    model = rod(HalfSpace((0, 0, -RADIUS), (0, 0, 1)), Penalty(0.05, 1e-4))
    state = model.initial_state()
    rest, _ = Static().step(model, state, throw=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        rollout(model, state, ImplicitEuler(1e-2), 1)  # that touches the floor
        sunk = rollout(model, rest, ImplicitEuler(1e-2), 1)
    with pytest.warns(RuntimeWarning, match="sank"):  # which is another matter: see test_ending
        fallen = rollout(model, state, ImplicitEuler(5e-2), 100).state
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        rollout(model, fallen, ImplicitEuler(1e-2), 1)
    for depth in (sunk.contact["penetration"][-1], model.contact_report(fallen)["penetration"]):
        assert float(depth) > 5 * RADIUS


def test_clamped_nodes_inside_are_not_warned_of():
    """Let a rod stand in a soft floor: what is held in it is not thrown out."""
    model = rod(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(10.0, 1e-3), "edge", (0, 0, -0.06), (0, 0, 0.18))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        rollout(model, model.initial_state(), ImplicitEuler(1e-2), 1)


def test_check_of_a_scene_says_so(tmp_path):
    """Warn of a floor whose height has the wrong sign before the scene runs."""
    scene = tmp_path / "scene.toml"
    scene.write_text(
        "[robot]\nnodes = [[0, 0, 0], [0.1, 0, 0], [0.2, 0, 0]]\nrod_edges = [[0, 1], [1, 2]]\n"
        '[rod]\nsection = {shape = "circle", radius = 2e-3}\nyoungs = 2e6\ndensity = 1100.0\n'
        "[simulation]\ndt = 1e-2\nduration = 0.1\n[floor]\nheight = 0.5\nstiffness = 10.0\n"
    )
    with pytest.warns(RuntimeWarning, match="obstacle 'floor' .* of robot 0 begins inside of it, 0.502 m deep"):
        result = CliRunner().invoke(app, ["check", str(scene)])
    assert result.exit_code == 0
