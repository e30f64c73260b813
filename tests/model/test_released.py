"""Robots whose clamps are let go: what keeps its place, how they fall, and what is refused."""

import re

import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Model,
    RobotBuilder,
    State,
    forces,
    meshes,
    rollout,
    straight,
)
from torchdismech.elastic import Dahl
from torchdismech.integrate import BDF2
from torchdismech.rigid import RigidChain

LENGTH, NODES = 0.1, 9
ENDS = [0, NODES - 1]


def rod(*held: int, remembers: bool = False, nodes: int = NODES, sheet: bool = False) -> Model:
    """Return a rod in space under gravity whose ends of these numbers are held in their directions.

    Parameters
    ----------
    sheet : whether a sheet with mid-edge normals stands beside it, whose normals are counted before held directions.
    """
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), nodes), Circle(1e-3), Material(1e6, 1200.0))
    if sheet:
        mesh = meshes.rectangle(0.1, 0.1, 0.05)
        builder.add_shell(mesh.nodes + [0.0, 1.0, 0.0], mesh.triangles, 1e-3, Material(1e6, 1000.0))
    if remembers:
        builder.add_inelastic("bend_twist", Dahl(dict.fromkeys(("EI1", "EI2", "GJ"), 1e-7), 4.0))
        builder.add_inelastic("stretch", Dahl({"EA": 1.0}, 0.01))
    for node in held:
        builder.clamp(nodes=[node], direction="rest")
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    return builder.finalize(compile=False)


def turned(model: Model, steps: int = 20, integrator=None):
    """Return a state in which the clamp of the last end has come nearer and has turned about the rod and across it."""
    angle = torch.linspace(0, 2.5, steps + 1, dtype=torch.float64)
    poses = model.rest_poses.expand(steps, 1, -1, -1).clone()
    poses[:, 0, -1, 0] -= 0.1 * LENGTH * angle[1:]
    poses[:, 0, -1, 3] = torch.cos(angle[1:])
    poses[:, 0, -1, 4], poses[:, 0, -1, 5] = 0.8 * torch.sin(angle[1:]), 0.6 * torch.sin(angle[1:])
    integrator = ImplicitEuler(5e-3) if integrator is None else integrator
    state = model.initial_state()
    for pose in poses:
        state, _ = integrator.step(model, state, Control(pose=pose), throw=True)
    return state


@pytest.mark.parametrize("kept", [(), (0,), (NODES - 1,), (NODES - 1, 0)])
@pytest.mark.parametrize("sheet", [False, True])
def test_all_else_stays_as_it_was(kept, sheet):
    """Let go of clamps of a rod that is bent, and twisted by most of a turn: what stays has all bits of its strains."""
    before, after = rod(*ENDS, sheet=sheet), rod(*kept, sheet=sheet)
    state = turned(before)
    found = after.released(state, before)
    assert torch.equal(found.positions, state.positions) and torch.equal(found.node_velocities, state.node_velocities)
    order = [0, NODES - 1]
    held = [order.index(node) for node in kept]
    assert torch.equal(found.held_tangents, state.held_tangents[:, held])
    springs = torch.tensor([*range(NODES - 2), *(NODES - 2 + k for k in held)])
    theirs, ours = before.strains(state), after.strains(found)
    assert theirs["tau"].abs().max() > 0.1 and theirs["kappa1"].abs().max() > 0.1
    for name, value in ours.items():
        expected = theirs[name][:, springs] if name in ("kappa1", "kappa2", "tau") else theirs[name]
        assert torch.equal(value, expected), name
    assert torch.equal(found.time, state.time)
    assert found.acceleration[:, : 3 * NODES].abs().max() > 1.0  # what forces give, which held nodes did not feel


def test_what_is_let_go_falls():
    """Drop a cantilever that swings: its centre of mass falls as a stone, its momenta stay but for gravity's."""
    before, after = rod(0), rod()
    state = rollout(before, before.initial_state(), ImplicitEuler(5e-3), 20, throw=True).state
    start, steps, dt = after.released(state, before), 20, 5e-3
    end = rollout(after, start, ImplicitMidpoint(dt, force_tolerance=1e-13), steps, throw=True).state
    mass = after.body.node_mass()[:, None]

    def mean(x):
        return (mass * x[0]).sum(0) / mass.sum()

    def spin(s):
        arm, motion = s.positions[0] - mean(s.positions), s.node_velocities[0] - mean(s.node_velocities)
        return (mass * torch.linalg.cross(arm, motion)).sum(0)

    time, down = steps * dt, torch.tensor([0.0, 0.0, -9.81], dtype=torch.float64)
    velocity = mean(start.node_velocities)
    # midpoint steps are exact for it; residuals of 1e-13 N on 4e-4 kg in 20 steps move it by less than 1e-10 m/s
    torch.testing.assert_close(mean(end.node_velocities), velocity + time * down, rtol=0, atol=1e-10)
    fallen = mean(start.positions) + time * velocity + 0.5 * time**2 * down
    torch.testing.assert_close(mean(end.positions), fallen, rtol=0, atol=1e-11)
    assert spin(start).norm() > 1e-7
    torch.testing.assert_close(spin(end), spin(start), rtol=0, atol=1e-12)


def test_a_free_rod_is_one_that_was_never_held():
    """Let go of a rod at rest: it is in the state in which a free one begins, bit for bit."""
    before, after = rod(0), rod()
    found, expected = after.released(before.initial_state(2), before), after.initial_state(2)
    for value, own in zip(found.fields(), expected.fields(), strict=True):
        assert torch.equal(value, own)


def test_materials_keep_what_they_remember():
    """Let go of the first of two clamps: friction between fibres is as it was in all springs that are left."""
    before, after = rod(*ENDS, remembers=True), rod(NODES - 1, remembers=True)
    state = turned(before)
    found = after.released(state, before)
    theirs, ours = before.internal_variables(state), after.internal_variables(found)
    left = [*range(NODES - 2), NODES - 1]
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        expected = theirs[name][:, left] if name.startswith("bend_twist") else theirs[name]
        assert value.abs().max() > 0 and torch.equal(value, expected), name
    ImplicitEuler(5e-3).step(after, found, throw=True)


def test_two_step_rules_begin_anew():
    """Let go within a run by BDF2, whose states have the step before, and go on by BDF2."""
    before, after = rod(*ENDS), rod()
    found = after.released(turned(before, integrator=BDF2(5e-3)), before)
    rollout(after, found, BDF2(5e-3), 3, throw=True)


def test_gradients_pass():
    """Differentiate by the velocity before: what is let go goes on with it."""
    before, after = rod(0), rod()
    velocity = torch.zeros(1, before.n_dofs, dtype=torch.float64)
    velocity[0, 3 * NODES - 1] = 0.1
    velocity.requires_grad_()
    found = after.released(before.initial_state(velocity=velocity), before)
    found.node_velocities[0, -1, 2].backward()
    assert velocity.grad is not None and velocity.grad[0, 3 * NODES - 1] == 1.0


def test_refuses_what_it_is_not_for():
    """Name what is not the same; without it, say what to take where numbers of dofs differ by clamps."""
    held, free = rod(0), rod()
    state = held.initial_state()
    with pytest.raises(InputError, match=re.escape("got 39; it holds 0 rod edges in a direction, and the state is of")):
        ImplicitEuler(5e-3).step(free, state)
    longer = rod(nodes=NODES + 1)  # its node more has as many dofs as a direction that is held
    ImplicitEuler(5e-3).step(longer, longer.initial_state())
    for refused in (longer.energies, longer.strains, lambda s: ImplicitEuler(5e-3).step(longer, s)):
        with pytest.raises(InputError, match="this model has 39 dofs, got as many of another robot; it holds 0 rod"):
            refused(state)
    with pytest.raises(InputError, match="joined: expected one or more states of one kind and robot"):
        State.joined([state, longer.initial_state()])
    with pytest.raises(InputError, match="this model holds rod edge 7 at node 8 in a direction, and before did not"):
        rod(*ENDS).released(state, held)
    with pytest.raises(InputError, match="released: before: has other nodes than this model: expected the same robot"):
        rod(nodes=10).released(state, held)
    with pytest.raises(InputError, match="its materials remember by other laws"):
        rod(remembers=True).released(state, held)
    with pytest.raises(InputError, match="State.q: this model has 35 dofs, got 39"):
        free.released(state, free)
    with pytest.raises(InputError, match="released: before: expected the model that the state is of, got RigidChain"):
        free.released(state, RigidChain.cylinder(3, 0.1, 0.01, 1000.0, 1e6))
