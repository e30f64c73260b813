"""Numbers of contact in scenes that differ from robot to robot."""

import pytest
import torch
from typer.testing import CliRunner

from tests.io.contact_scenes import BALL, CONSTRAINT, FLOOR, GRAVITY, RADIUS, randomized, rod, time
from tests.scenes import run
from torchdismech import (
    Trajectory,
)
from torchdismech.cli import app

# ---- numbers of each robot, resumed runs -------------------------------------------------------------------------

ALL_NUMBERS = (
    rod(0.0)
    + "contact_radius = 5e-3\n"
    + GRAVITY.format(0.5)
    + time(0.01)
    + "[floor]\nheight = -4.5e-3\nstiffness = 50.0\nfriction = 0.2\nslip_velocity = 0.01\ntolerance = 2e-3\n"
    + "static_friction = 0.3\n"
    + '[[obstacle]]\nshape = "plane"\npoint = [0, 0, -4.5e-3]\nnormal = [0, 0.2, 1]\nstiffness = 50.0\n'
    + '[[obstacle]]\nshape = "sphere"\ncenter = [0.1, 0, 0.104]\nradius = 0.1\n'
    + "stiffness = 50.0\nvelocity = [0, 0, -0.1]\n"
    + '[[obstacle]]\nshape = "box"\ncenter = [0.05, -0.05, 0]\nsize = [0.1, 0.091, 0.1]\nrotation = [0, 0, 0.01]\n'
    + "stiffness = 50.0\n"
    + '[[obstacle]]\nshape = "capsule"\nstart = [0, 0.02, 0]\nend = [0.1, 0.03, 0]\nradius = 0.0155\nstiffness = 50.0\n'
    + "[self_contact]\nstiffness = 1.0\nfriction = 0.1\ntolerance = 2e-3\n"
)


DRAWS = {
    "rod.contact_radius": (5e-3, 6e-3),
    "floor.height": (-4.5e-3, -4e-3),
    "floor.stiffness": (50.0, 80.0),
    "floor.friction": (0.0, 0.2),
    "floor.slip_velocity": (0.01, 0.02),
    "floor.static_friction": (0.3, 0.5),
    "floor.tolerance": (2e-3, 4e-3),
    "obstacle.0.point.2": (-4.5e-3, -4e-3),
    "obstacle.0.normal.1": (0.2, 0.4),
    "obstacle.0.stiffness": (50.0, 80.0),
    "obstacle.1.center.2": (0.104, 0.1035),
    "obstacle.1.radius": (0.1, 0.1005),
    "obstacle.1.velocity.2": (-0.1, -0.2),
    "obstacle.2.center.1": (-0.05, -0.0495),
    "obstacle.2.size.1": (0.091, 0.092),
    "obstacle.2.rotation.2": (0.01, 0.02),
    "obstacle.3.start.1": (0.02, 0.0195),
    "obstacle.3.end.1": (0.03, 0.02),
    "obstacle.3.radius": (0.0155, 0.016),
}


@pytest.mark.parametrize("name", DRAWS)
def test_each_number_reaches_its_robot(load, name):
    """Give two robots different numbers: each moves as it does alone with its number, not as the other."""
    both = run(load(ALL_NUMBERS + randomized(name, list(DRAWS[name]))))
    for robot, value in enumerate(DRAWS[name]):
        alone = run(load(ALL_NUMBERS + randomized(name, [value])))
        # Newton stops at 1e-8 of the force; what rounding changes in it, some 1e-16 of 0.1 m, stays far below 1e-10 m
        torch.testing.assert_close(both.positions[:, robot], alone.positions[:, 0], rtol=0, atol=1e-10)
    assert (both.positions[-1, 0] - both.positions[-1, 1]).abs().max() > 1e-7


CROSSED = (
    "[robot]\nnodes = [[-0.05, 0, 0], [0, 0, 0], [0.05, 0, 0], [0, -0.05, 0.0095], [0.002, 0.06, 0.0095]]\n"
    "rod_edges = [[0, 1], [1, 2], [3, 4]]\n"
    f'[rod]\nsection = {{shape = "circle", radius = {RADIUS}}}\nyoungs = 1e6\ndensity = 1000.0\n'
    "[[clamp]]\nnodes = [0, 1, 2]\n" + GRAVITY.format(1.0) + time(0.02)
)


CONSTRAINED = (
    rod(RADIUS)
    + GRAVITY.format(1.0)
    + time(0.02)
    + CONSTRAINT
    + "friction = 0.05\n"
    + BALL.replace("[0.1, 0, -0.1]", "[0.1, 0.1045, 0.01]").replace("stiffness = 100.0\n", "friction = 0.05\n")
    + 'response = "complementarity"\nvelocity = [0, -0.5, 0]\n'
)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("floor.friction", (0.0, 0.05)),
        ("floor.height", (0.0, 1e-4)),
        ("obstacle.0.friction", (0.05, 0.1)),
        ("obstacle.0.radius", (0.1, 0.1005)),
        ("obstacle.0.velocity.1", (-0.5, -0.6)),
    ],
)
def test_each_number_of_a_constraint_reaches_its_robot(load, name, values):
    """Give two robots different numbers of constraints: each moves as it does alone with its number."""
    both = run(load(CONSTRAINED + randomized(name, list(values))))
    for robot, value in enumerate(values):
        alone = run(load(CONSTRAINED + randomized(name, [value])))
        # contact problems are solved to 1e-8 m; the same iterations give the same numbers but for rounding
        torch.testing.assert_close(both.positions[:, robot], alone.positions[:, 0], rtol=0, atol=1e-10)
    assert (both.positions[-1, 0] - both.positions[-1, 1]).abs().max() > 1e-7


@pytest.mark.slow
def test_numbers_of_self_contact_reach_their_robots(load):
    """Let a rod lie on another with a stiffness, friction, slip velocity and tolerance of each robot."""
    law = {"stiffness": 100.0, "friction": 0.2, "slip_velocity": 0.01, "tolerance": 2e-3}
    text = CROSSED + "[self_contact]\n" + "".join(f"{name} = {value}\n" for name, value in law.items())
    for name, value in law.items():
        values = [value, 1.5 * value]
        both = run(load(text + randomized(f"self_contact.{name}", values))).positions
        for robot, own in enumerate(values):
            alone = run(load(text + randomized(f"self_contact.{name}", [own]))).positions
            torch.testing.assert_close(both[:, robot], alone[:, 0], rtol=0, atol=1e-10)
        assert (both[-1, 0] - both[-1, 1]).abs().max() > 1e-7


@pytest.mark.parametrize("law", ["stiffness = 100.0\n", 'response = "complementarity"\n'])
def test_resumed_run_is_bitwise_the_uninterrupted_one(load, tmp_path, law):
    """Stop a run in the midst of contact of all kinds and go on: nothing but the state is needed."""
    ball = BALL.replace("[0.1, 0, -0.1]", "[0.1, 0.1, 0.03]").replace("stiffness = 100.0\n", law)
    contacts = FLOOR.replace("0.0", "2e-3") + "friction = 0.3\n" + ball + "velocity = [-0.5, 0, 0]\n"
    contacts += f"[self_contact]\n{law}friction = 0.2\n"
    touching = CROSSED.replace("0.0095", "0.01")  # the rods rest on each other
    load(touching + contacts + "[output]\nevery = 2\n" + randomized("floor.friction", [0.1, 0.2]))

    def simulate(*arguments) -> None:
        command = ["simulate", tmp_path / "scene.toml", "--no-progress", "--device", "cpu", *arguments]
        result = CliRunner().invoke(app, [str(part) for part in command])
        assert result.exit_code == 0, result.output

    whole, parts = tmp_path / "whole.h5", tmp_path / "parts.h5"
    simulate("--out", whole)
    simulate("--out", parts, "--steps", 6)
    simulate("--resume", parts)
    first, second = Trajectory.load(whole), Trajectory.load(parts)
    assert torch.equal(first.positions, second.positions) and torch.equal(first.velocities, second.velocities)
    assert torch.equal(first.energies["floor"], second.energies["floor"]) and (first.energies["floor"][3] > 0).all()
    for name in ("active", "penetration", "force/floor", "force/obstacle0", "force/part1"):
        assert torch.equal(first.contact[name], second.contact[name]) and (first.contact[name][3] != 0).any()
