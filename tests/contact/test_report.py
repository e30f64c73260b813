"""Reports of contact: counts, overlap and forces, in memory and in the file."""

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.contact.robots import (
    ROBOTS,
    constrained_between_nodes,
    constrained_crossing,
    constrained_on_obstacles,
    numbers,
)
from torchdismech import (
    BDF2,
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    Status,
    Trajectory,
    forces,
    rollout,
    straight,
)
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.contact.report import obstacle_report
from torchdismech.integrate.recorded import recording

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
    # a node's weight, 4e-4 N, on a spring of 2 k = 100 N/m: 3e-6 m seen; of constraints their tolerance
    assert float(contact["penetration"].max()) < (1e-5 if response == "penalty" else 1e-8)


class Called(TorchFunctionMode):
    """Notes the functions of torch that are called."""

    def __init__(self):
        super().__init__()
        self.functions = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.functions.add(func)
        return func(*args, **(kwargs or {}))


def test_sizes_of_forces_are_found_by_component():
    """Give the sum of the sizes of an obstacle's forces without torch's norm, which took a fifth of a step."""
    model, _ = inclined("penalty")
    state, (floor,) = model.initial_state(), model.obstacles
    state = state.replace(q=state.q - 2e-5 * (torch.arange(state.q.shape[1]) % 3 == 2), velocity=0.01 + state.velocity)
    with Called() as called:
        report = obstacle_report(model.body, model.obstacles, state)
    assert torch.linalg.vector_norm not in called.functions and torch.sqrt in called.functions
    sizes = torch.linalg.vector_norm(floor.force_of(floor.surface(state)), dim=-1)
    assert report["sliding"].tolist() == [6, 6] and bool((sizes > 0).all())
    # six sizes, each rounded in three products, two sums and a root
    assert torch.allclose(report["load/floor"], sizes.sum(1), rtol=1e-15 * 12, atol=0)


@pytest.mark.parametrize("make", [lambda: ROBOTS["rods"]("penalty", True), lambda: constrained_crossing(0.3)])
def test_parts_push_each_other_alike(make):
    """Report opposite forces on the two parts of a robot."""
    model = make()
    _, info = ImplicitEuler(5e-3).step(model, model.initial_state(), throw=True)
    total = info.contact["force/part0"] + info.contact["force/part1"]
    size = info.contact["force/part0"].abs().amax()
    assert float(size) > 0 and float(total.abs().max()) < 1e-12 * float(size)


ON_OBSTACLES = {
    "nodes": lambda: ROBOTS["obstacles"]("penalty", True),
    "constraints": lambda: constrained_on_obstacles(0.3),
    "edges": lambda: ROBOTS["edges"]("penalty", True),
    "constraints between nodes": lambda: constrained_between_nodes(0.3),
}


@pytest.mark.parametrize("make", ON_OBSTACLES.values(), ids=ON_OBSTACLES)
def test_report_in_the_file(tmp_path, make):
    """Read back what was written, by name."""
    model = make()
    run = rollout(model, model.initial_state(), ImplicitEuler(5e-3), 4, every=2)
    run.save(tmp_path / "run.h5")
    read = Trajectory.load(tmp_path / "run.h5")
    assert {f"force/{o.name}" for o in model.obstacles} < set(read.contact)
    assert set(read.contact) == set(run.contact)
    assert all(torch.equal(read.contact[name], values) for name, values in run.contact.items())


@pytest.mark.parametrize("make", ON_OBSTACLES.values(), ids=ON_OBSTACLES)
def test_forces_on_nodes(make):
    """Add up to those of the obstacles, and nowhere pull: loads are at least as large as forces."""
    model = make()
    _, info = ImplicitEuler(5e-3).step(model, model.initial_state(), throw=True)
    forces = torch.stack([info.contact[f"force/{o.name}"] for o in model.obstacles])
    loads = torch.stack([info.contact[f"load/{o.name}"] for o in model.obstacles])
    # the same numbers, added in another order
    torch.testing.assert_close(info.contact["node_force"].sum(1), forces.sum(0), rtol=1e-12, atol=1e-14)
    assert bool((loads > 0).any()) and bool((loads >= forces.norm(dim=-1) * (1 - 1e-12)).all())
    assert bool((loads.sum(0) >= info.contact["node_force"].norm(dim=-1).sum(1) * (1 - 1e-12)).all())


PARTS = {
    "shell": lambda: ROBOTS["shell"]("penalty", True),
    "smooth lines": lambda: ROBOTS["lines"]("penalty", True),
    "constraints": lambda: constrained_crossing(0.3),
}


@pytest.mark.parametrize("make", PARTS.values(), ids=PARTS)
def test_forces_on_nodes_of_parts(make):
    """Give the nodes of each part what the rest does to it, and the contact a load that says how hard it presses."""
    model = make()
    _, info = ImplicitEuler(5e-3).step(model, model.initial_state(), throw=True)
    parts = model.body.part_of_node
    on_parts = [info.contact["node_force"][:, parts == k].sum(1) for k in range(parts.max() + 1)]
    for k, force in enumerate(on_parts):
        # the same numbers, added in another order
        torch.testing.assert_close(force, info.contact[f"force/part{k}"], rtol=1e-12, atol=1e-14)
    load = info.contact["load/self_contact"]
    # each pair pushes two parts, or two places of one
    assert bool((2 * load >= sum(f.norm(dim=-1) for f in on_parts) * (1 - 1e-12)).all()) and bool((load > 0).all())


@pytest.mark.parametrize("name", ROBOTS)
def test_robots_of_a_batch_report_what_they_report_alone(name):
    """Give row i of a batch what robot i gives alone."""
    model = ROBOTS[name]("penalty", True)
    _, both = ImplicitEuler(5e-3).step(model, model.initial_state(), throw=True)
    for i in range(2):
        alone = ROBOTS[name]("penalty", True, slice(i, i + 1))
        _, own = ImplicitEuler(5e-3).step(alone, alone.initial_state(), throw=True)
        assert own.contact.keys() == both.contact.keys()
        for key, value in own.contact.items():
            # the same sums, by vectors of other lengths; forces are some 0.1 N
            torch.testing.assert_close(both.contact[key][i : i + 1], value, rtol=1e-9, atol=1e-12, msg=key)


@pytest.mark.parametrize(
    ("make", "integrator", "steps"),
    [
        (lambda: Penalty(200.0, 1e-3), Static(), 1),
        (Complementarity, ImplicitEuler(1e-2), 20),
        (Complementarity, Static(), 1),
    ],
)
def test_loads_of_named_contacts(make, integrator, steps):
    """Let a pile of three rods press on a floor: each contact bears the weight of what lies on it."""
    builder = RobotBuilder()
    for k, name in enumerate(("low", "middle", "high")):
        x = np.linspace([-0.02, 0, 0], [0.02, 0, 0], 3) if k % 2 == 0 else np.linspace([0, -0.02, 0], [0, 0.02, 0], 3)
        nodes = builder.add_rod(x + [0, 0, 1e-3 + 2e-3 * k], Circle(1e-3), Material(1e9, 1e4, 0.4), name=name)
        builder.clamp(nodes=nodes.tolist(), axes="xy")
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), make(), name="floor"))
    builder.add_contact(SelfContact(make(), between=("low", "middle"), name="bottom"))
    builder.add_contact(SelfContact(make(), between=("middle", "high")))
    model = builder.finalize()
    run = rollout(model, model.initial_state(), integrator, steps, every=steps, throw=True)
    weight = 9.81 * model.body.node_mass().sum() / 3
    loads = [float(run.contact[f"load/{name}"][-1] / weight) for name in ("floor", "bottom", "middle-high")]
    # forces balance to 1e-6 of those at play; what still swings after the steps is less than that
    assert loads == pytest.approx([3, 2, 1], rel=1e-4)


def falling(*contacts):
    """Return two rods above a floor, and a state in which the first falls too fast for its step to be solved."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0.1), (0.1, 0, 0.1), 11), Circle(2e-3), Material(1e6, 1100.0))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(50.0, 1e-4), name="floor"))
    for contact in contacts:
        builder.add_contact(contact)
    model = builder.finalize()
    velocity = torch.zeros(2, model.n_dofs, dtype=model.dtype)
    velocity[0, 2:33:3], velocity[1, 2:33:3] = -150.0, -0.01
    return model, model.initial_state(velocity=velocity)


def assert_first_touches_nothing(report, frames=False):
    """Find zeros for the first robot in a report (B, ..), or in those of frames (T, B, ..)."""
    for name, value in report.items():
        assert not (value[:, 0] if frames else value[0]).any(), name


WAYS = {
    "obstacles": (ImplicitEuler, []),
    "its own parts": (ImplicitEuler, [lambda: SelfContact(Penalty(50.0, 1e-4))]),
    "midpoint": (ImplicitMidpoint, []),
    "newmark": (Newmark, []),
    "bdf2": (BDF2, []),
}


@pytest.mark.filterwarnings("ignore::torchdismech.errors.FailureWarning")
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("seen", [0, 10**9], ids=["recorded", "not recorded"])
@pytest.mark.parametrize("way", WAYS)
def test_robots_that_failed_touch_nothing(way, seen, every, monkeypatch):
    """Report no contact of a robot that stays above the floor, in the frame of its failure and in all that follow."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", seen)
    integrator, others = WAYS[way]
    model, state = falling(*(make() for make in others))
    run = rollout(model, state, integrator(1e-3, max_iterations=2), 4, every=every)
    recorded = way == "obstacles" and not seen  # a tape takes whole steps; of BDF2 none of the first
    assert any(isinstance(kind.recording, recording.RecordedStep) for kind in model.recordings) or not recorded
    assert run.status[-1].tolist() == [Status.MAX_ITERATIONS, Status.CONVERGED]
    assert_first_touches_nothing(run.contact, frames=True)


@pytest.mark.parametrize("seen", [0, 10**9], ids=["recorded", "not recorded"])
def test_robots_that_are_not_stepped_touch_nothing(seen, monkeypatch):
    """Report no contact of a robot that is left aloneby one step and by several, wherever its velocity leads."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", seen)
    model, state = falling()
    integrator, running = ImplicitEuler(1e-3), torch.tensor([False, True])
    assert_first_touches_nothing(integrator.step(model, state, running=running)[1].contact)
    assert_first_touches_nothing(integrator.steps(model, state, 6, running=running)[1].contact)
    assert integrator.step(model, state)[1].contact["active"].tolist() == [11, 0]


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
