"""Gradients of energies and strains: sensors and energy terms in a loss."""

import pytest
import torch

from tests import shells
from tests.contact.robots import ROBOTS
from tests.gradients.cases import GradientCase, SmallEnergy, robot
from tests.integrate import test_chunks as many
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    Rectangle,
    RobotBuilder,
    forces,
    rollout,
    straight,
    trainable,
)
from torchdismech.contact import HalfSpace, Obstacle, Penalty
from torchdismech.model import model as model_module

MODELS = {
    "rod": lambda: robot("rod", []),
    "network": lambda: robot("network", []),
    "hinge": lambda: shells.robot("hinge", [], hinge=SmallEnergy(strains=1, size=1.0, density=1e-4)),
    "midedge_rod": lambda: shells.robot("midedge_rod", []),
    "touching": lambda: ROBOTS["rods"]("penalty", True),
    "obstacles": lambda: ROBOTS["obstacles"]("penalty", True),
}
SIZES = {"q": 1e-3, "velocity": 1e-2, "director": 1e-2, "reference_twist": 0.1}  # of changes to a state


def moving(model, batch: int = 2):
    """Return a state, bent, twisted and moving, off the anchors of its frames."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(2, batch, model.n_dofs, dtype=torch.float64, generator=generator)
    state = model.initial_state(batch=batch).detach()
    return state.replace(q=state.q + 3e-4 * noise[0], velocity=1e-2 * noise[1])


class Scalar:
    """One number that all energies or strains of a model go into, each by as much as another."""

    def __init__(self, kind: str, model, state, control=None):
        self.kind, self.control = kind, control
        self.weights = {}
        generator = torch.Generator().manual_seed(5)
        for name, value in self.found(model, state).items():
            weight = torch.randn(value.shape, dtype=value.dtype, generator=generator)
            self.weights[name] = weight / value.detach().abs().max().clamp_min(1e-12)

    def found(self, model, state) -> dict[str, torch.Tensor]:
        """Return the energies or the strains."""
        return model.strains(state) if self.kind == "strains" else model.energies(state, self.control)

    def __call__(self, model, state) -> torch.Tensor:
        """Return the number."""
        return sum((self.weights[name] * value).sum() for name, value in self.found(model, state).items())


def slope(function, at: torch.Tensor, direction: torch.Tensor) -> float:
    """Return the derivative along a direction by central differences with steps of 1e-5 of it."""
    with torch.no_grad():
        return (function(at + 1e-5 * direction) - function(at - 1e-5 * direction)).item() / 2e-5


def close(found: float, expected: float) -> bool:
    """Compare to differences of numbers near 1: 1e-16 / 1e-5 of rounding, and truncation by strong curvature."""
    return found == pytest.approx(expected, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("kind", ["energies", "strains"])
@pytest.mark.parametrize("name", MODELS)
def test_by_state(name, kind):
    """Differentiate by positions and angles, velocities, directors and reference twist."""
    model = MODELS[name]()
    state = moving(model)
    scalar = Scalar(kind, model, state)
    generator = torch.Generator().manual_seed(6)
    for field, size in SIZES.items():
        value = getattr(state, field)
        direction = size * torch.randn(value.shape, dtype=value.dtype, generator=generator)

        def function(v, field=field):
            return scalar(model, state.replace(**{field: v}))

        expected = slope(function, value, direction)
        leaf = value.clone().requires_grad_()
        number = function(leaf)
        gradient = torch.autograd.grad(number, leaf, allow_unused=True)[0] if number.requires_grad else None
        assert close(0.0 if gradient is None else (gradient * direction).sum().item(), expected), field
        assert field != "q" or abs(expected) > 1e-4


@pytest.mark.parametrize("kind", ["energies", "strains"])
@pytest.mark.parametrize("name", MODELS)
def test_by_constants(name, kind):
    """Differentiate by every parameter and every size of the model, each along a random direction."""
    model = MODELS[name]()
    state = moving(model)
    scalar = Scalar(kind, model, state)
    tensors = {name: tensor.requires_grad_() for name, tensor in GradientCase.differentiable(model)}
    gradients = torch.autograd.grad(scalar(model, state), list(tensors.values()), allow_unused=True)
    generator = torch.Generator().manual_seed(6)
    seen = 0  # at least lengths at rest matter to strains
    for (what, tensor), gradient in zip(tensors.items(), gradients, strict=True):
        size = torch.full_like(tensor, 0.1) if "natural" in what or "network" in what else tensor.detach().abs()
        direction = size * torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)
        before = tensor.detach().clone()

        def function(v, tensor=tensor):
            tensor.copy_(v)
            return scalar(model, state)

        expected = slope(function, before, direction)
        with torch.no_grad():
            tensor.copy_(before)
        assert close(0.0 if gradient is None else (gradient * direction).sum().item(), expected), what
        seen += abs(expected) > 1e-6
    assert seen


@pytest.mark.parametrize("trained", [False, True])
def test_in_parts(trained, monkeypatch):
    """Find the gradients of a batch at once where it is evaluated some robots at a time."""
    found = []
    for size in (many.BATCH, 3):
        monkeypatch.setattr(model_module, "robots_at_a_time", lambda model, batch, size=size: size)
        model = many.robot(learned=True)
        state = moving(model, many.BATCH)
        wanted = [p.requires_grad_() for what, p in model.named_parameters() if "network" in what]
        if trained:  # one factor of each robot, and one of all
            wanted.append(trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"], (many.BATCH, 1)).log_factor)
            wanted.append(trainable.scaled(model, ["mass"]).log_factor)
        else:
            wanted.append(model.term("stretch").energy.EA.requires_grad_())
        q = state.q.clone().requires_grad_()
        control = many.controls(model)
        curvature = control.natural_curvature.clone().requires_grad_()
        scalar = Scalar("energies", model, state, control.replace(natural_curvature=curvature))
        value = scalar(model, state.replace(q=q))
        found.append(torch.autograd.grad(value, [q, curvature, *wanted], allow_unused=True))
    for ours, expected in zip(*found, strict=True):
        # the same sums, grouped otherwise
        assert (ours is None and expected is None) or torch.allclose(ours, expected, rtol=1e-10, atol=0)


def test_a_rollout_records_without_graphs():
    """Keep energies of a rollout free of graphs, also where constants are trained."""
    model = robot("rod", [])
    trainable.scaled(model, ["stretch.EA"])
    trajectory = rollout(model, model.initial_state(batch=2), ImplicitEuler(0.005), 2)
    assert not any(energy.requires_grad for energy in trajectory.energies.values())
    assert model.energies(model.initial_state(batch=2))["stretch"].requires_grad


def test_force_of_an_obstacle():
    """Compare the gradient of what a floor carries after a step, by the masses, with differences; reports have none."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0.0019), (0.1, 0, 0.0019), 5), Circle(2e-3), Material(1e6, 1100.0))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(50.0, 1e-4), name="floor"))
    model = builder.finalize()
    masses = trainable.scaled(model, ["mass"]).log_factor

    def carried():
        state, info = ImplicitEuler(1e-3, force_tolerance=1e-12).step(model, model.initial_state())
        return model.obstacles[0](state, Control())[0, 2:15:3].sum(), info.contact["force/floor"][0, 2]

    force, reported = carried()
    assert not reported.requires_grad
    # the same sums in another order
    assert force.item() == pytest.approx(reported.item(), rel=1e-12)
    (found,) = torch.autograd.grad(force, masses)
    sides = []
    for change in (1e-4, -1e-4):
        with torch.no_grad():
            masses.fill_(change)
            sides.append(carried()[0].item())
    # differences of 1e-4: their third order is 1e-8 of the force, which is some .1 N
    assert float(found) == pytest.approx((sides[0] - sides[1]) / 2e-4, rel=1e-6)
    assert abs(float(found)) > 1e-3


def test_a_warning_of_twist_leaves_the_steps_before_it_as_they_were():
    """Differentiate the energy after a step in which the model warns of a spring that is twisted too far."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 3), Rectangle(2e-3, 4e-3), Material(1e6, 1100.0))
    builder.clamp(nodes=[0, 1])
    model = builder.finalize()
    state = model.initial_state()
    q = state.q.clone()
    q[:, -1] = 1.5  # rad, between the two edges
    velocity = torch.zeros_like(q, requires_grad=True)
    state, _ = ImplicitEuler(1e-4).step(model, model.initial_state(q=q, velocity=velocity))
    with pytest.warns(UserWarning, match="twisted by"):
        energies = model.energies(state)
    (found,) = torch.autograd.grad(sum(energies.values()).sum(), velocity)
    assert float(found[0, -1]) > 0  # a turn that goes on twisting stores more
