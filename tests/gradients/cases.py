"""An inherited test case: a new term or integrator says how to make its robot and gets all tests of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from tests.networks import NETWORK
from torchdismech import Circle, Control, Material, Model, RobotBuilder, State, forces, helix, unroll
from torchdismech.elastic import Energy
from torchdismech.integrate.integrator import Integrator

HELIX = helix((0, 0, 0), (0.05, 0, 0), (0, 0.1, 1), 4.0, 0.1, 6)
# Steps are solved to the rounding of their residuals, so that differences see a smooth function.
EXACT = {"force_tolerance": 1e-14, "relative_tolerance": 0.0}


# each input on its own: where all at once are wrong, these say which
ONE_STEP_EACH = pytest.param(True, 1, marks=pytest.mark.slow)
ROLLOUT_EACH = pytest.param(True, "rollout", marks=pytest.mark.slow)


class SmallForce(forces.LocalForce):
    """A learned force: a perceptron on each edge's vector, directors and velocity."""

    def __init__(self) -> None:
        super().__init__(reach=1)
        torch.manual_seed(1)
        self.network = nn.Sequential(nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 3)).double()

    def nodal_force(self, state: State, control: Control) -> Tensor:
        """Return the same push on both nodes of each edge."""
        x, u, edges = state.positions, state.node_velocities, self._edges
        _, m1, _ = self.frames(state)
        e, mean = x[:, edges[:, 1]] - x[:, edges[:, 0]], 0.5 * (u[:, edges[:, 0]] + u[:, edges[:, 1]])
        push = 1e-3 * self.network(torch.cat([30 * e, m1, mean], dim=-1))
        return torch.zeros_like(x).index_add(1, edges[:, 0], push).index_add(1, edges[:, 1], push)


class SmallEnergy(Energy):
    """A learned energy: by default of bending and twist, strains of about 10 1/m and small densities [J/m]."""

    def __init__(self, strains: int = 3, size: float = 10.0, density: float = 1e-3) -> None:
        super().__init__()
        self.size, self.scale = size, density
        torch.manual_seed(2)
        self.network = nn.Sequential(nn.Linear(strains, 4), nn.Tanh(), nn.Linear(4, 1)).double()

    def density(self, strain) -> Tensor:
        """Return the density."""
        return self.scale * self.network(torch.stack(strain, dim=-1) / self.size).squeeze(-1)


def every_load() -> list[forces.Force]:
    """Return one force of each kind, and a learned one."""
    return [
        forces.Gravity((0.3, 0, -9.81)),
        forces.Buoyancy((0, 0, -9.81), 300.0),
        forces.PointForce([3], (1e-3, 2e-3, 3e-3)),
        forces.Viscous(0.2),
        forces.MassDamping(3.0),
        forces.Resistive(0.1, 0.3),
        forces.QuadraticResistive(0.5, 1.5, 100.0),
        SmallForce(),
    ]


def robot(shape: str, loads: list[forces.Force], learned: bool = True, batch: bool = True) -> Model:
    """Return a model (of two robots of unlike stiffness), partly clamped, with damping and a learned energy."""
    builder = RobotBuilder()
    youngs = torch.tensor([[1e6], [2e6]], dtype=torch.float64) if batch else 1e6
    section, material = Circle(2e-3), Material(youngs, 1000.0, 0.4, relaxation_time=2e-3)
    flat = {"EI1": youngs * 4e-3 * 3e-3**3 / 12, "EI2": youngs * 3e-3 * 4e-3**3 / 12}  # as that of a rectangle
    if shape == "rod":
        builder.add_rod(HELIX, section, material, stiffness=flat)
        builder.clamp(nodes=[0, 1])
    else:
        builder.add_rods(*NETWORK, section, material, stiffness=flat)
        builder.clamp(nodes=[2], axes="xz")
        builder.clamp(nodes=[3, 4])
    for load in loads:
        builder.add_force(load)
    if learned:
        builder.add_energy("bend_twist", SmallEnergy())
    return builder.finalize()


class GradientCase:
    """Subclass it as `class TestMine(GradientCase)`, set `integrator` and `model()`, and all below is tested.

    Checked against differences: one step and three, by everything that a step depends on. The scalar that is checked
    sums q, velocity and acceleration with random weights, so that no output is left out.
    """

    integrator: Integrator
    steps = 3
    moves_clamps = True
    has_inertia = True
    known = 1e-13  # m, what rounding leaves of an output: of some 80 numbers of .1 m with weights of 1

    def model(self) -> Model:
        """Return a model of two robots."""
        raise NotImplementedError

    # ---- what a step depends on --------------------------------------------------------------------------------

    def start(self, model: Model) -> tuple[Tensor, Tensor]:
        """Return q and velocity (2, n): bent, twisted and moving, gently enough for whole Newton steps."""
        generator = torch.Generator().manual_seed(3)
        scale = torch.cat(
            [torch.full((3 * len(model.nodes),), 1e-4), torch.full((model.body.n_angles,), 0.02)]
        ).double()

        def noise(size: float) -> Tensor:
            return size * scale * torch.randn(2, model.n_dofs, dtype=torch.float64, generator=generator)

        velocity = noise(20.0) if self.has_inertia else torch.zeros(2, model.n_dofs, dtype=torch.float64)
        return model.initial_state(batch=2).q.detach() + noise(1.0), velocity

    def controls(self, model: Model) -> dict[str, Tensor]:
        """Return values for every field of a control."""
        generator = torch.Generator().manual_seed(4)
        own = model.natural_strains(2)
        q, _ = self.start(model)
        fields = {
            name: getattr(own, name).detach() * stretch + shift
            for name, stretch, shift in (
                ("natural_curvature", 1.0, 0.01),
                ("natural_twist", 1.0, -0.01),
                ("natural_hinge_angle", 1.0, 0.01),
                ("natural_membrane_strain", 1.0, 0.002),
                ("rest_length", 1.0002, 0.0),
            )
            if getattr(own, name) is not None
        }
        fields["force"] = 1e-4 * torch.randn(q.shape, dtype=torch.float64, generator=generator)
        if self.moves_clamps:
            fields["clamped_q"] = q + 1e-4 * torch.randn(q.shape, dtype=torch.float64, generator=generator)
        return fields

    def output(self, model: Model, q: Tensor, velocity: Tensor, fields: dict[str, Tensor], steps: int) -> Tensor:
        """Return one number that all of the last state goes into."""
        state = model.initial_state(q=q, velocity=velocity)
        control = Control(**fields)
        for _ in range(steps):
            state, info = self.integrator.step(model, state, control)
            assert bool(info.converged.all()), info
        generator = torch.Generator().manual_seed(5)
        weight = torch.randn(3, *q.shape, dtype=torch.float64, generator=generator)
        dt = getattr(self.integrator, "dt", 1.0)  # equilibria have none
        parts = (state.q, dt * state.velocity, dt * dt * state.acceleration)
        return sum((w * part).sum() for w, part in zip(weight, parts, strict=True))  # type: ignore[return-value]

    def checked(self, name: str, found: float, value: Callable[[float], float]) -> float:
        """Hold a derivative along a direction against the central difference of value(step); return the difference.

        Steps are 1e-5 of the inputs' size. Truncation is then about 1e-10 of the third derivative; rounding leaves what
        is `known` of the value, over 1e-5; 2e-5 relative leaves room for strong curvature.
        """
        with torch.no_grad():
            difference = (value(1e-5) - value(-1e-5)) / 2e-5
        assert found == pytest.approx(difference, rel=2e-5, abs=self.known / 1e-5), (name, found, difference)
        return difference

    # ---- tests -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("each", "count"), [(False, "rollout"), ONE_STEP_EACH, ROLLOUT_EACH])
    def test_by_state_and_control(self, each, count):
        """Differentiate by positions, twist angles, velocities and the fields of the control, all at once or each.

        A robot has no fields for elements that it does not have; clamped_q is prescribed motion.
        """
        model = self.model()
        q, velocity = self.start(model)
        inputs = {"q": q, **({"velocity": velocity} if self.has_inertia else {}), **self.controls(model)}
        sizes = dict.fromkeys(inputs, 1e-2) | {"velocity": 1.0, "force": 1e-3}  # soft robots move by 17 m/N
        sizes |= dict.fromkeys(("natural_curvature", "natural_twist", "natural_hinge_angle"), 0.1)
        steps = self.steps if count == "rollout" else 1

        def output(given: dict[str, Tensor]) -> Tensor:
            fields = {name: value for name, value in given.items() if name not in ("q", "velocity")}
            return self.output(model, given["q"], given.get("velocity", velocity), fields, steps)

        leaves = {name: value.clone().requires_grad_() for name, value in inputs.items()}
        gradients = dict(zip(leaves, torch.autograd.grad(output(leaves), list(leaves.values())), strict=True))
        generator = torch.Generator().manual_seed(7)
        directions = {
            name: sizes[name] * torch.randn(value.shape, dtype=value.dtype, generator=generator)
            for name, value in inputs.items()
        }

        def moved(names: list[str], step: float) -> float:
            return float(output(inputs | {name: inputs[name] + step * directions[name] for name in names}))

        for names in ([name] for name in inputs) if each else [list(inputs)]:
            slope = sum(float((gradients[name] * directions[name]).sum()) for name in names)
            self.checked(", ".join(names), slope, lambda step, n=names: moved(n, step))

    @pytest.mark.parametrize("each", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_by_constants_masses_and_weights(self, each):
        """Differentiate by every parameter and every size of the model, along random directions.

        A rollout along all of these directions at once, or a step along each.
        """
        model = self.model()
        q, velocity = self.start(model)
        fields = {k: v for k, v in self.controls(model).items() if k in ("force", "clamped_q")}
        tensors = dict(self.differentiable(model))
        generator = torch.Generator().manual_seed(6)
        directions = {name: self.direction(name, tensor, generator) for name, tensor in tensors.items()}
        for tensor in tensors.values():
            tensor.requires_grad_()
        steps = 1 if each else self.steps
        slopes = self.slopes(model, q, velocity, fields, steps)
        along = {name: float((slope * directions[name]).sum()) for name, slope in slopes.items()}
        # most of them matter here, or this would check nothing
        assert sum(abs(slope) > 1e-7 for slope in along.values()) >= len(tensors) // 2
        before = {name: tensor.detach().clone() for name, tensor in tensors.items()}

        def moved(names: list[str], step: float) -> float:
            for name in names:
                tensors[name].copy_(before[name] + step * directions[name])
            value = float(self.output(model, q, velocity, fields, steps))
            for name in names:
                tensors[name].copy_(before[name])
            return value

        for names in ([name] for name in along) if each else [list(along)]:
            slope = sum(along[name] for name in names)
            self.checked(", ".join(names), slope, lambda step, n=names: moved(n, step))

    def slopes(self, model: Model, q: Tensor, velocity: Tensor, fields: dict, steps: int) -> dict[str, Tensor]:
        """Return the gradients of the output by name, of the tensors that it depends on."""
        tensors = dict(self.differentiable(model))
        output = self.output(model, q, velocity, fields, steps)
        gradients = torch.autograd.grad(output, list(tensors.values()), allow_unused=True)
        return {name: g for name, g in zip(tensors, gradients, strict=True) if g is not None}

    @staticmethod
    def direction(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random direction, of the size of a tensor that is no natural strain or weight."""
        alike = "natural" in name or "network" in name or "acceleration" in name
        size = torch.full_like(tensor, 0.1) if alike else tensor.detach().abs()
        return size * torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)

    @staticmethod
    def differentiable(model: Model) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and tensors that a step can be differentiated by."""
        yield from model.named_parameters()
        yield "mass", model.body.mass
        for term in model.terms:
            for strain in term.stencil.strains:
                natural = getattr(term, f"natural_{strain}")
                if natural is not None:
                    yield f"{term.name}.natural_{strain}", natural
            if hasattr(term.stencil, "rest_length"):
                yield f"{term.name}.rest_length", term.stencil.rest_length  # type: ignore[misc]

    def test_checkpointed_rollout_has_the_same_gradient(self):
        """Get the same numbers whether states are kept or recomputed."""
        if not self.has_inertia:
            pytest.skip("static solves are not strung together")
        model = self.model()
        q, velocity = self.start(model)
        found = []
        for every in (None, 2):
            leaf = q.clone().requires_grad_()
            state = model.initial_state(q=leaf, velocity=velocity).replace(acceleration=torch.zeros_like(q))
            run = unroll(model, state, self.integrator, 3, checkpoint_every=every)
            assert (run.status == 0).all()
            found.append(torch.autograd.grad((run.q[-1] ** 2).sum(), leaf)[0])
        assert torch.equal(*found)
