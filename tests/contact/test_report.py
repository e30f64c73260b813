"""Reports of contact: counts, overlap and forces, in memory and in the file."""

import numpy as np
import pytest
import torch

from tests.contact.robots import ROBOTS, constrained_crossing, constrained_on_obstacles, numbers
from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, Trajectory, forces, rollout
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, Penalty

RESPONSES = {
    "penalty": lambda: (Penalty(50.0, 1e-4), Friction(0.3, 1e-3)),
    "complementarity": lambda: (Complementarity(), Friction(0.3)),
}


def inclined(response: str):
    """Return a straight rod of 6 nodes on slopes below and above its angle of friction."""
    builder = RobotBuilder()
    builder.add_rod(np.linspace([0, 0, 1e-3], [0.05, 0, 1e-3], 6), Circle(1e-3), Material(1e7, 1200.0, 0.4))
    slope = numbers(0.1, 0.5)[:, 0]
    down = torch.stack([torch.sin(slope), torch.zeros_like(slope), -torch.cos(slope)], dim=1)
    builder.add_force(forces.Gravity(9.81 * down))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), *RESPONSES[response](), name="floor"))
    return builder.finalize(), slope


@pytest.mark.parametrize("response", RESPONSES)
def test_sticking_and_sliding(response):
    """Count all nodes as sticking below the angle of friction and as sliding above; carry the weight."""
    model, slope = inclined(response)
    run = rollout(model, model.initial_state(), ImplicitEuler(5e-3), 40, every=10, throw=True)
    contact = run.contact
    assert contact["active"][-1].tolist() == [6, 6]
    assert contact["sticking"][-1].tolist() == [6, 0] and contact["sliding"][-1].tolist() == [0, 6]
    weight = 9.81 * model.body.node_mass().sum()
    # the rod settles into a penalty in damped swings: 1e-3 of the weight is left of them
    accuracy = 1e-3 if response == "penalty" else 1e-8
    force = contact["force/floor"][-1]
    assert torch.allclose(force[:, 2], weight * torch.cos(slope), rtol=accuracy)
    friction = torch.minimum(torch.tan(slope), torch.tensor(0.3).double()) * torch.cos(slope)
    # what sticks by smoothed friction still creeps into equilibrium, by 1e-4 of the weight a step
    assert torch.allclose(-force[:, 0], weight * friction, rtol=10 * accuracy)
    overlap = -(run.positions[1:, ..., 2] - 1e-3).amin(-1).clamp(max=0)
    assert bool((contact["penetration"][1:] >= overlap - 1e-15).all())
    assert float(contact["penetration"].max()) < (2e-4 if response == "penalty" else 1e-8)


@pytest.mark.parametrize("make", [lambda: ROBOTS["rods"]("penalty", True), lambda: constrained_crossing(0.3)])
def test_parts_push_each_other_alike(make):
    """Report opposite forces on the two parts of a robot."""
    model = make()
    _, info = ImplicitEuler(5e-3).step(model, model.initial_state(), throw=True)
    total = info.contact["force/part0"] + info.contact["force/part1"]
    size = info.contact["force/part0"].abs().amax()
    assert float(size) > 0 and float(total.abs().max()) < 1e-12 * float(size)


@pytest.mark.parametrize("make", [lambda: ROBOTS["obstacles"]("penalty", True), lambda: constrained_on_obstacles(0.3)])
def test_report_in_the_file(tmp_path, make):
    """Read back what was written, by name."""
    model = make()
    run = rollout(model, model.initial_state(), ImplicitEuler(5e-3), 4, every=2)
    run.save(tmp_path / "run.h5")
    read = Trajectory.load(tmp_path / "run.h5")
    assert {f"force/{o.name}" for o in model.obstacles} < set(read.contact)
    assert set(read.contact) == set(run.contact)
    assert all(torch.equal(read.contact[name], values) for name, values in run.contact.items())


def test_no_report_without_contact():
    """Report nothing of a robot that cannot touch anything."""
    builder = RobotBuilder()
    builder.add_rod(np.linspace([0, 0, 0], [0.05, 0, 0], 4), Circle(1e-3), Material(1e7, 1200.0, 0.4))
    model = builder.finalize()
    assert rollout(model, model.initial_state(), ImplicitEuler(5e-3), 1).contact == {}


@pytest.mark.parametrize("name", ["", "a/b", "kinetic", "floor", "part0"])
def test_names_of_obstacles(name):
    """Refuse names that would hide another report."""
    builder = RobotBuilder()
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Complementarity(), name="floor"))
    with pytest.raises(InputError, match="name"):
        builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Complementarity(), name=name))
