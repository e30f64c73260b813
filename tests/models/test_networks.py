"""Networks inside the step: nothing untrained; right derivatives, symmetries and gradients trained."""

import sys

import pytest
import torch

import models
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    RobotBuilder,
    forces,
    helix,
    straight,
    unroll,
)
from torchdismech.integrate.recorded import gradients as recorded_gradient
from torchdismech.integrate.recorded import recording
from torchdismech.testing import check_energy, check_force, check_symmetry

HELIX = helix((0, 0, 0), (0.05, 0, 0), (0, 0.1, 1), 4.0, 0.1, 8)
FORCES = {
    "drag_law": models.DragLaw,
    "messages": models.MessagePassingForce,
    "messages_one_round": lambda: models.MessagePassingForce(rounds=1, place=False),
    "edges": models.ResidualForce,
    "edges_directors": lambda: models.ResidualForce(directors=True),
}
FEATURES = torch.linspace(-1, 1, 6, dtype=torch.float64)[:, None]  # of the six springs, or stencils of check_energy
ENERGIES = {
    "convex": models.ConvexEnergy,
    "convex_uneven": lambda: models.ConvexEnergy(even=False, hidden=(8, 8, 8)),
    "residual": models.ResidualEnergy,
    "residual_bounded": lambda: models.ResidualEnergy(bounded=True),
    "residual_features": lambda: models.ResidualEnergy(features=FEATURES),
}


def shaken(module, size: float = 0.3):
    """Return the module with random weights, as after training."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return module


def robot(force=None, energy=None, dissipation=None):
    """Return a clamped helix of eight nodes with such a term."""
    builder = RobotBuilder()
    builder.add_rod(HELIX, Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    if force is not None:
        builder.add_force(force)
    if energy is not None:
        builder.add_energy("bend_twist", energy)
    if dissipation is not None:
        builder.add_dissipation("bend_twist", dissipation)
    return builder.finalize()


def moving(model, batch: int = 3):
    """Return deformed, moving robots."""
    generator = torch.Generator().manual_seed(2)
    rest = model.initial_state().q.detach()

    def noise(scale):
        return scale * torch.randn(batch, model.n_dofs, dtype=torch.float64, generator=generator)

    start = model.initial_state(q=rest + noise(2e-4), velocity=noise(0.3)).detach()
    return start.replace(q=start.q + noise(1e-3))


@pytest.mark.parametrize("name", sorted(set(FORCES) - {"drag_law"}))
def test_untrained_force_changes_nothing(name):
    """Be exactly zero."""
    force = FORCES[name]()
    model = robot(force)
    assert (force(moving(model), Control()) == 0).all()


@pytest.mark.parametrize("name", ENERGIES)
def test_untrained_energy_changes_nothing(name):
    """Leave a rollout as it is without the term, to the last bits."""
    states = []
    for model in (robot(), robot(energy=ENERGIES[name]()), robot(dissipation=models.ConvexEnergy())):
        with torch.no_grad():
            states.append(unroll(model, model.initial_state(), ImplicitEuler(0.01), 3).q)
    for other in states[1:]:
        # adding exact zeros may change how kernels round
        assert torch.allclose(states[0], other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", FORCES)
def test_force_passes_the_contract(name):
    """Have the derivatives of `check_force`, also beyond the declared reach, and rows as if alone."""
    force = shaken(FORCES[name]())
    model = robot(force)
    check_force(force, model, moving(model)).raise_if_failed()


@pytest.mark.parametrize("name", FORCES)
def test_force_has_the_symmetries_it_claims(name):
    """Turn about gravity (drag: about any axis), move, and be given other numbers."""
    force = shaken(FORCES[name]())
    model = robot(force)
    rotation = "any" if name == "drag_law" else "gravity"
    reversal = name != "edges_directors"
    check_symmetry(force, model, moving(model), rotation=rotation, reversal=reversal).raise_if_failed()


def test_broken_symmetries_show():
    """Fail each check for a force that prefers a direction, a place, a number."""

    class Odd(forces.LocalForce):
        def nodal_force(self, state, control):
            x = state.positions
            number = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
            return number * x * torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype)

    force = Odd(reach=0)
    model = robot(force)
    failed = {check.name for check in check_symmetry(force, model, moving(model)).checks if not check.ok}
    assert failed == {"turns with the robot about gravity", "moves with the robot", "other numbers"} | {
        "edges the other way round"  # nodes get other numbers there, too
    }


LEARNED = {
    **{f"force {name}": lambda make=make: {"force": make()} for name, make in FORCES.items()},
    **{f"energy {name}": lambda make=make: {"energy": make()} for name, make in ENERGIES.items()},
    "dissipation": lambda: {"dissipation": models.ConvexEnergy(size=100.0)},  # rates are larger than strains
}


@pytest.mark.parametrize("name", LEARNED)
def test_steps_are_recorded(name, monkeypatch):
    """Lead a CPU to the same bits by a recording, and to the same gradients by the weights but for rounding."""
    found = []
    for steps_before in (sys.maxsize, 0):
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", steps_before)
        monkeypatch.setattr(recorded_gradient, "PASSES_BEFORE_RECORDING", 1)
        torch.manual_seed(0)
        ((role, module),) = LEARNED[name]().items()
        model = robot(**{role: shaken(module, 0.03)})
        state, gradients = moving(model), []
        for _ in range(2):  # an optimiser changes the weights in place meanwhile
            for _ in range(2):
                state, _ = ImplicitEuler(2e-4).step(model, state, throw=True)
            gradients += torch.autograd.grad(state.q.square().sum(), list(module.parameters()))
            state = state.detach()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(1.05)
        assert model.recordings and all(
            (kind.recording is not None) == (steps_before == 0) for kind in model.recordings
        )
        assert any(passes.recording for kind in model.recordings for passes in kind.backward.values()) == (
            steps_before == 0
        )
        found.append((state.q, gradients))
    (q, gradients), (recorded_q, recorded_gradients) = found
    assert torch.equal(q, recorded_q)
    for ours, theirs in zip(recorded_gradients, gradients, strict=True):
        # sums of some thousand terms in another order
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12 * float(theirs.abs().max()))


class Unsaid(models.ResidualEnergy):
    """An energy whose class does not say `records` itself."""


def test_an_energy_that_does_not_say_records_is_not_recorded():
    """Go call by call; a setting that changes is followed by one that says so."""
    said, unsaid = robot(energy=models.ResidualEnergy()), robot(energy=Unsaid())
    with torch.no_grad():
        for model in (said, unsaid):
            unroll(model, model.initial_state(), ImplicitEuler(2e-3), 14)
        assert said.recordings and not unsaid.recordings
        energy = next(m for m in said.modules() if isinstance(m, models.ResidualEnergy))
        shaken(energy, 0.1)
        ends = [unroll(said, said.initial_state(), ImplicitEuler(2e-3), 2).q[-1]]
        energy.scale = 0.05
        ends += [unroll(said, said.initial_state(), ImplicitEuler(2e-3), steps).q[2] for steps in (2, 14)]
    assert not torch.equal(*ends[:2]) and torch.equal(*ends[1:])


@pytest.mark.parametrize("name", ENERGIES)
def test_energy_passes_the_contract(name):
    """Have the derivatives of `check_energy` at curvatures of the size that it is made for."""
    check_energy(shaken(ENERGIES[name]()), strains=3, size=10.0).raise_if_failed()


@pytest.mark.parametrize("name", ["convex", "convex_uneven"])
def test_convex_energy_is_convex_and_least_at_rest(name):
    """Lie below the chord between random strains, and nowhere below zero, which it is at rest."""
    energy = shaken(ENERGIES[name]())
    generator = torch.Generator().manual_seed(0)
    a, b = 30 * torch.randn(2, 3, 200, 5, dtype=torch.float64, generator=generator)
    share = torch.rand(200, 5, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        between = energy.density(tuple(share * a + (1 - share) * b))
        chord = share * energy.density(tuple(a)) + (1 - share) * energy.density(tuple(b))
        least = energy.density(tuple(a))
        rest = energy.density(tuple(torch.zeros_like(a)))
    rounding = 1e-12 * float(chord.abs().max())
    assert (between <= chord + rounding).all()
    assert (least >= -rounding).all()
    assert rest.abs().max() <= rounding


def test_bounded_energy_is_bounded():
    """Stay above minus softplus(g(0)) x scale, far out."""
    energy = shaken(models.ResidualEnergy(bounded=True, scale=1.0))
    far = 1e4 * torch.randn(3, 300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        floor = -torch.nn.functional.softplus(energy.network(torch.zeros(3, dtype=torch.float64)))
        assert (energy.density(tuple(far)) >= floor - 1e-12).all()


def test_drag_law_takes_power_out_whatever_the_weights():
    """Have power <= 0 at random motions, and start at its constant coefficients."""
    force = models.DragLaw(start=0.1)
    model = robot(force)
    state = moving(model)
    untrained = (force(state, Control()) * state.velocity).sum(1)
    shaken(force, size=2.0)
    for seed in range(5):
        velocity = torch.randn(state.q.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        at = state.replace(velocity=velocity)
        assert ((force(at, Control()) * velocity).sum(1) <= 0).all()
    assert (untrained < 0).all()


@pytest.mark.parametrize(
    "kind", ["drag_law", "messages", "edges_directors", "convex", "residual", "residual_bounded", "damping"]
)
def test_gradient_through_steps_by_the_weights(kind):
    """Match central differences of a rollout of three steps along a random direction of all weights."""
    torch.manual_seed(0)  # of the weights: what differences leave out depends on them
    if kind in FORCES:
        module = shaken(FORCES[kind](), 0.1)
        model = robot(force=module)
    else:
        size = 0.02 if kind == "residual" else 0.1  # an energy without bound soon makes robots snap
        module = shaken(models.ConvexEnergy() if kind == "damping" else ENERGIES[kind](), size)
        model = robot(dissipation=module) if kind == "damping" else robot(energy=module)
    integrator = ImplicitEuler(0.005, force_tolerance=1e-13, relative_tolerance=0.0)
    parameters = list(module.parameters())
    generator = torch.Generator().manual_seed(3)
    direction = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in parameters]

    def loss():
        run = unroll(model, model.initial_state(batch=2), integrator, 3)
        assert (run.status == 0).all()
        return (run.positions[-1] ** 2).sum()

    found = sum((g * d).sum() for g, d in zip(torch.autograd.grad(loss(), parameters), direction, strict=True))
    values = []
    step = 1e-5  # truncation up to 1e-7 of the derivative, of networks with six other seeds; rounding 1e-8
    with torch.no_grad():
        for sign in (1, -1):
            for p, d in zip(parameters, direction, strict=True):
                p += sign * step * d
            values.append(loss())
            for p, d in zip(parameters, direction, strict=True):
                p -= sign * step * d
    difference = (values[0] - values[1]) / (2 * step)
    assert found.item() == pytest.approx(difference.item(), rel=1e-5, abs=1e-11)


def test_baseline_without_physics():
    """Keep held nodes where they are held, turn with the chain about gravity, and pass gradients."""
    rest = torch.full((5,), 0.1, dtype=torch.float64)
    network = shaken(models.FreeNodes(rest), 0.2)
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(2, 6, 3, dtype=torch.float64)
    x[..., 0] = torch.arange(6) * 0.1
    x += 0.02 * torch.randn(x.shape, dtype=torch.float64, generator=generator)
    u = torch.randn(x.shape, dtype=torch.float64, generator=generator)
    held = torch.tensor([True, False, False, False, False, True])
    angle = torch.tensor(0.7, dtype=torch.float64)
    turn = torch.eye(3, dtype=torch.float64)
    turn[0, 0] = turn[1, 1] = angle.cos()
    turn[0, 1], turn[1, 0] = -angle.sin(), angle.sin()
    after, speed = network.step(x, u, x + 0.01, held, 0.01)
    assert torch.equal(after[:, held], (x + 0.01)[:, held])
    turned, _ = network.step(x @ turn.T, u @ turn.T, (x + 0.01) @ turn.T, held, 0.01)
    assert torch.allclose(turned, after @ turn.T, rtol=0, atol=1e-13)
    reversed_, _ = network.step(x.flip(1), u.flip(1), (x + 0.01).flip(1), held.flip(0), 0.01)
    assert torch.allclose(reversed_, after.flip(1), rtol=0, atol=1e-13)
    speed.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)


def test_controller_adds_nothing_untrained_and_learns():
    """Leave natural curvature alone at first, stay within its amplitude, and have the gradient of differences."""
    model = robot()
    controller = models.CurvatureController(amplitude=0.05)
    control = controller(moving(model), Control(), model)
    assert torch.equal(control.natural_curvature, model.natural_strains(3).natural_curvature)
    shaken(controller, 0.5)
    change = controller(moving(model), Control(), model).natural_curvature - model.natural_strains(3).natural_curvature
    assert 0.01 < change.abs().max() <= 0.05 + 1e-15  # rounding of the sum with the model's own
    bias = controller.network[-1].bias
    integrator = ImplicitEuler(0.005, force_tolerance=1e-13, relative_tolerance=0.0)

    def loss():
        run = unroll(model, model.initial_state(), integrator, 3, controller=controller)
        return run.positions[-1].square().sum()

    (gradient,) = torch.autograd.grad(loss(), bias)
    with torch.no_grad():
        values = []
        for shift in (1e-4, -2e-4):
            bias[0] += shift
            values.append(loss())
    # tanh is far from flat at these weights, so truncation is 1e-8 of the slope
    assert gradient[0].item() == pytest.approx(((values[0] - values[1]) / 2e-4).item(), rel=1e-4, abs=1e-12)


def test_controller_of_a_rod_that_is_held_in_a_direction():
    """Leave out springs at held tangents, of which a control sets no natural strains."""
    builder = RobotBuilder()
    builder.add_rod(HELIX, Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    model = builder.finalize()
    control = shaken(models.CurvatureController())(moving(model), Control(), model)
    assert control.natural_curvature.shape == (3, len(model.springs), 2)
    unroll(model, moving(model), ImplicitEuler(0.005), 2, controller=models.CurvatureController())


def test_controller_of_a_planar_robot_bends_it_in_its_plane():
    """Change kappa1 alone: steps refuse curvatures out of the plane, which a trained network gave."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    model, controller = builder.finalize(), shaken(models.CurvatureController())
    change = controller(model.initial_state(2), Control(), model).natural_curvature
    assert (change[..., 0] != 0).all() and (change[..., 1] == 0).all()
    unroll(model, model.initial_state(2), ImplicitEuler(0.005), 2, controller=controller)
