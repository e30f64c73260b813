"""Primal-dual steps for robots that rub: the same roots as other ways find, in a few iterations, each robot alone."""

import pytest
import torch

from torchdismech import Circle, ImplicitEuler, ImplicitMidpoint, Material, RobotBuilder, Status, forces, straight
from torchdismech.contact import Friction, HalfSpace, Obstacle, Penalty
from torchdismech.integrate import integrator as integrators
from torchdismech.integrate import recording
from torchdismech.integrate.step import BRIEFLY

ROBOTS, NODES = 24, 9


def thrown(robots=ROBOTS, slip=1e-3):
    """Return rods that hit a rough floor at different speeds, soft and stiff, and their state."""
    generator = torch.Generator().manual_seed(3)
    builder = RobotBuilder()
    youngs = torch.logspace(4, 8, ROBOTS, dtype=torch.float64)[:robots, None]
    builder.add_rod(straight((0, 0, 0.007), (0.2, 0, 0.006), NODES), Circle(5e-3), Material(youngs, 1000.0, 0.4))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(200.0, 1e-3), Friction(0.4, slip)))
    model = builder.finalize(compile=False)
    velocity = torch.zeros(ROBOTS, NODES, 3, dtype=torch.float64)
    velocity += 0.5 * torch.randn(ROBOTS, 1, 3, generator=generator, dtype=torch.float64)
    velocity += torch.linspace(-0.5, 0.5, NODES, dtype=torch.float64)[:, None] * torch.tensor([0.0, 1.0, 0.3])
    velocity[..., 2] = -0.5
    full = torch.zeros(robots, model.n_dofs, dtype=torch.float64)
    full[:, : 3 * NODES] = velocity[:robots].flatten(1)
    return model, model.initial_state(velocity=full)


def run(model, state, integrator, count=12):
    """Return the states and the infos of some steps."""
    states, infos = [], []
    for _ in range(count):
        state, info = integrator.step(model, state)
        states.append(state)
        infos.append(info)
    return states, infos


@pytest.mark.parametrize("slip", [1e-3, 1e-5])
@pytest.mark.parametrize("kind", [ImplicitEuler, ImplicitMidpoint])
def test_same_roots_in_fewer_iterations(kind, slip, monkeypatch):
    """Find what line searches and eased friction find, from the same states, in fewer iterations."""
    model, state = thrown(slip=slip)
    states, infos = run(model, state, kind(2e-3))
    worst = torch.stack([info.iterations for info in infos]).max()
    assert all(bool((info.status == Status.CONVERGED).all()) for info in infos)
    assert int(worst) <= BRIEFLY["whole"] + BRIEFLY["primal-dual"]
    monkeypatch.setattr(kind, "attempts", lambda *_: [(True, "brief"), (False, "eased"), (False, "plain")])
    most = 0
    for before, after in zip([state, *states[:-1]], states, strict=True):
        found, info = kind(2e-3).step(model, before)
        same = info.status == Status.CONVERGED
        most = max(most, int(info.iterations.max()))
        assert int(same.sum()) >= ROBOTS - 1
        # both end at residuals of 1e-8 of the forces
        assert float((found.q - after.q)[same].abs().max()) < 1e-8
    assert most > worst


def test_a_robot_alone_and_every_bit_of_recorded_steps(monkeypatch):
    """Step a robot as if the others were not there, and recorded steps as others."""
    found = []
    for seen in (2, 10**9):
        monkeypatch.setattr(recording, "SEEN", seen)
        model, state = thrown()
        states, infos = run(model, state, ImplicitEuler(2e-3))
        assert any(kind.recording is not None for kind in model.recordings) == (seen == 2)
        found.append([*(s.q for s in states), *(i.iterations for i in infos), *(i.residual for i in infos)])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
    assert max(int(info.iterations.max()) for info in infos) > BRIEFLY["whole"] + 1
    few, start = thrown(3)
    alone, _ = run(few, start, ImplicitEuler(2e-3), 3)
    # other solvers may serve so few: rounding, which friction makes larger
    assert float((alone[-1].q - states[2].q[:3]).abs().max()) < 1e-9


def test_ways_of_robots_that_rub():
    """Take primal-dual steps where obstacles are rough, from where whole Newton steps are no good, and no others."""
    model, state = thrown(2)
    equations = ImplicitEuler(2e-3).equations(model, state)
    ways = list(ImplicitEuler(2e-3).attempts(equations))
    assert ways[:3] == [(True, "whole"), (None, "primal-dual"), (False, "eased")]
    assert integrators.is_sharp(equations) is False
    whole = list(ImplicitEuler(2e-3, line_search=False).attempts(equations))
    assert whole == [(True, "plain"), (False, "plain")]
