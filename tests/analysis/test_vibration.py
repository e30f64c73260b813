"""Modes of small vibrations: against theory of rods, strings and plates, against motion, and what is refused."""

import math

import numpy as np
import pytest
import torch

from tests.rods import rod_through
from torchdismech import (
    Circle,
    Control,
    ImplicitMidpoint,
    InputError,
    Material,
    RobotBuilder,
    Static,
    forces,
    meshes,
    modes,
    straight,
)
from torchdismech.contact import Complementarity, HalfSpace, Obstacle, Penalty
from torchdismech.solve import eigen

LENGTH, RADIUS, YOUNGS, DENSITY = 1.0, 5e-3, 1e7, 1000.0
EI = YOUNGS * math.pi * RADIUS**4 / 4
EA = YOUNGS * math.pi * RADIUS**2
LINE = DENSITY * math.pi * RADIUS**2  # kg/m
BEAM = math.sqrt(EI / LINE) / LENGTH**2 / (2 * math.pi)  # Hz
CLAMPED_FREE = np.array([1.8751040687, 4.6940911330, 7.8547574382]) ** 2 * BEAM
FREE_FREE = np.array([4.7300407449, 7.8532046241, 10.9956078380]) ** 2 * BEAM


def rod(edges=20, clamp=(0,), planar=False, loads=(), contact=None, direction="rest", mass="lumped", **material):
    """Return a rod along x, held in its direction at some nodes."""
    points, builder = straight((0, 0, 0), (LENGTH, 0, 0), edges + 1), RobotBuilder(planar=planar, mass=mass)
    made = Material(**{"youngs": YOUNGS, "density": DENSITY, **material})
    rod_through(points, Circle(RADIUS), made, loads, "not", builder)
    for node in clamp:
        builder.clamp(nodes=[node], direction=direction)
    if contact is not None:
        builder.add_contact(contact)
    return builder.finalize(compile=False)


def stretched(model, strain: float):
    """Return the state of a straight rod along x that is stretched evenly."""
    rest = model.initial_state().q[0].clone()
    rest[: 3 * model.body.n_nodes : 3] *= 1 + strain
    return model.initial_state(q=rest)


def pinned_frequencies(strain: float, count: int) -> np.ndarray:
    """Return sqrt((T k^2 + EI k^4) / m), k = i pi / L: of a beam under tension between two hinges [Hz]."""
    # the chain's springs keep the length at rest, over which curvature is measured, and its edges the mass
    k = np.arange(1, count + 1) * math.pi / LENGTH
    tension = EA * strain
    squares = (tension / (1 + strain) * k**2 + EI / (1 + strain) ** 2 * k**4) / LINE
    return np.sign(squares) * np.sqrt(np.abs(squares)) / (2 * math.pi)


def orders(coarse: np.ndarray, fine: np.ndarray) -> np.ndarray:
    """Return the orders that errors with twice the edges show."""
    return np.log2(np.abs(coarse) / np.abs(fine))


class TestRods:
    """Straight rods and strings."""

    def test_held_at_one_end(self):
        """Vibrate as Euler and Bernoulli have it, in two planes, to second order in the length of edges."""
        errors = []
        for edges in (20, 40):
            model = rod(edges)
            found = modes(model, model.initial_state(), 6).frequency[0].numpy()
            # two planes: pairs are equal up to rounding of the stiffness, 1e-16 of the stretching frequencies squared
            assert found[::2] == pytest.approx(found[1::2], rel=1e-7)
            errors.append(found[::2] / CLAMPED_FREE - 1)
        assert np.abs(errors[0]).max() < 0.023  # lumped masses: see test_clamps
        assert orders(*errors) == pytest.approx([2, 2, 2], abs=0.05)

    @pytest.mark.parametrize(("mass", "most", "order"), [("lumped", 0.01, 2), ("consistent", 5e-6, 4)])
    def test_free(self, mass, most, order):
        """Find six motions of a rigid body, exactly zero, the spin about the axis among them, and bending in pairs."""
        errors = []
        for edges in (20, 40):
            model = rod(edges, clamp=(), mass=mass)
            found = modes(model, model.initial_state(), 12)
            assert (found.eigenvalue[0, :6] == 0).all() and found.stable.all()
            errors.append(found.frequency[0, 6:].numpy()[::2] / FREE_FREE - 1)
        assert np.abs(errors[1]).max() < most
        # what the springs of a chain and consistent masses are off by cancels to second order (docs/rods.md)
        assert orders(*errors) == pytest.approx([order] * 3, abs=0.2)

    @pytest.mark.parametrize("strain", [0.05, 1e-4])
    def test_strings_under_tension(self, strain):
        """Sound as a beam under tension does; at 5 % stretch nearly a string's harmonics."""
        errors = []
        for edges in (20, 40):
            model = rod(edges, clamp=(0, edges), planar=True, direction=None)
            found = modes(model, stretched(model, strain), 3)
            errors.append(found.frequency[0].numpy() / pinned_frequencies(strain, 3) - 1)
        # of a chain: a wave k has the frequency of 2 / h sin(k h / 2), too low by (k h)^2 / 24 and, of bending, twice
        # that; with the springs' arcs 1.5 % in all at 3 pi / 20
        assert np.abs(errors[0]).max() < 0.02
        assert orders(*errors) == pytest.approx([2, 2, 2], abs=0.1)

    def test_compressed_beyond_euler(self):
        """Report a column that is not stable: how fast it grows, no NaN, and the other modes as ever."""
        edges = 40
        model = rod(edges, clamp=(0, edges), planar=True, direction=None)
        strain = -2 * (math.pi / LENGTH) ** 2 * EI / EA  # twice Euler's load
        found = modes(model, stretched(model, strain), 3)
        exact = 2 * math.pi * pinned_frequencies(strain, 3)
        assert exact[0] < 0 < exact[1] and found.stable.tolist() == [False]
        # second order: 0.2 % at the second mode and 40 edges
        assert found.growth_rate[0].numpy() == pytest.approx([-exact[0], 0, 0], rel=5e-3)
        assert (2 * math.pi * found.frequency[0]).numpy() == pytest.approx([0, *exact[1:]], rel=1e-2)
        assert torch.isfinite(found.damping_ratio).all() and found.damping_ratio[0, 0] == 0
        assert "1 unstable" in repr(found)


class TestPlates:
    """Square plates of nu = .3 by Leissa: omega a^2 sqrt(rho h / D)."""

    LEISSA = {"free": [13.468, 19.596, 24.270], "cantilever": [3.471, 8.506, 21.283]}

    def frequencies(self, side: str, divisions: int, mass: str) -> np.ndarray:
        """Return the first three, by mid-edge bending on a mesh of squares."""
        youngs, thickness, poisson = 1e9, 1e-3, 0.3
        mesh = meshes.rectangle(1.0, 1.0, 1 / divisions, "cross")
        builder = RobotBuilder(mass=mass)
        builder.add_shell(mesh.nodes, mesh.triangles, thickness, Material(youngs, DENSITY, poisson), "midedge")
        rigid = 0 if side == "cantilever" else 6
        if side == "cantilever":
            builder.clamp(nodes=np.flatnonzero(mesh.nodes[:, 0] < 1e-9).tolist())
        model = builder.finalize(compile=False)
        found = modes(model, model.initial_state(), rigid + 3)
        assert (found.eigenvalue[0, :rigid] == 0).all()
        rigidity = youngs * thickness**3 / (12 * (1 - poisson**2))
        return 2 * math.pi * found.frequency[0, rigid:].numpy() * math.sqrt(DENSITY * thickness / rigidity)

    @pytest.mark.parametrize("mass", ["lumped", "consistent"])
    @pytest.mark.parametrize("side", LEISSA)
    def test_square(self, side, mass):
        """Come to Leissa's numbers: at second order on free plates, within 2 % at 20 cells a side on all."""
        coarse, fine = self.frequencies(side, 10, mass), self.frequencies(side, 20, mass)
        exact = np.array(self.LEISSA[side])
        assert fine == pytest.approx(exact, rel=0.02)
        assert (np.abs(fine - exact) < 0.5 * np.abs(coarse - exact)).all()
        # second order in the length of edges: the limit; held sides are a little off that order
        assert fine + (fine - coarse) / 3 == pytest.approx(exact, rel=2e-3 if side == "free" else 6e-3)


class TestDamping:
    """Forces that change with velocity, and dissipation."""

    def test_of_mass(self):
        """A rate c times the mass: c / (2 omega) in every mode."""
        model = rod(loads=[forces.MassDamping(0.3)])
        found = modes(model, model.initial_state(), 4)
        exact = 0.3 / (4 * math.pi * found.frequency)
        assert torch.allclose(found.damping_ratio, exact, rtol=1e-9)  # bending does not turn edges about themselves
        assert torch.allclose(found.damping, torch.full_like(found.damping, 0.3), rtol=1e-9)

    def test_of_material(self):
        """A relaxation time tau: tau omega / 2 in every mode."""
        model = rod(relaxation_time=1e-3)
        found = modes(model, model.initial_state(), 4)
        # C is tau K, up to rounding of K that comes in times the instant over which C is measured
        assert torch.allclose(found.damping_ratio, 0.5e-3 * 2 * math.pi * found.frequency, rtol=1e-8)

    def test_as_a_robot_swings(self):
        """Let a rod go in its first mode: its swing has that frequency and that decay."""
        model = rod(10, loads=[forces.MassDamping(0.1)], relaxation_time=0.02)
        rest = model.initial_state()
        found = modes(model, rest, 1)
        shape = found.shape[:, 0]
        amplitude = 1e-6
        state = model.initial_state(q=rest.q + amplitude * shape)
        omega = 2 * math.pi * found.frequency.item()
        steps, dt = 100, 2 * math.pi / omega / 100
        rule, part = ImplicitMidpoint(dt, force_tolerance=1e-16, relative_tolerance=1e-13), []
        for _ in range(steps):
            state, _ = rule.step(model, state, throw=True)
            part.append(((state.q - rest.q) * model.body.mass * shape).sum().item() / amplitude)
        time, ratio = dt * np.arange(1, steps + 1), found.damping_ratio.item()
        damped = omega * math.sqrt(1 - ratio**2)
        start = np.cos(damped * time) + ratio / math.sqrt(1 - ratio**2) * np.sin(damped * time)
        assert 0.05 < ratio < 0.2
        # midpoint at 100 steps a period: its frequency is (omega dt)^2 / 12 = 3e-4 too low, 2e-3 in phase after one
        assert np.array(part) == pytest.approx(np.exp(-ratio * omega * time) * start, abs=3e-3)

    def test_none(self):
        """Nothing damps: zero, exactly."""
        model = rod()
        assert (modes(model, model.initial_state(), 4).damping_ratio == 0).all()


class TestShapes:
    """What modes are made of."""

    @pytest.mark.parametrize("mass", ["lumped", "consistent"])
    def test_mass_one_and_uncoupled(self, mass):
        """Shapes have a mass of 1 kg, and neither masses nor stiffness couple them; clamped dofs stay."""
        model = rod(mass=mass)
        state = model.initial_state()
        found = modes(model, state, 6)
        shape = found.shape[0]
        start = model.start_step(state)
        _, values = model.mechanics.force_and_stiffness(start, state.q, state.velocity, state.time)
        free = shape[:, model.unknowns.index]
        eye = torch.eye(6, dtype=torch.float64)
        assert torch.allclose(model.mechanics.inertia.times(shape) @ shape.T, eye, atol=1e-9)
        stiffness = free @ model.layout.pattern.to_dense(values)[0] @ free.T
        # rounding of the stiffness: 1e-16 of its largest eigenvalue, 1e8 / s^2
        assert torch.allclose(stiffness, torch.diag(found.eigenvalue[0]), atol=1e-6)
        assert (shape[:, ~model.free] == 0).all()

    def test_angles_without_inertia_follow(self):
        """Angles of mid-edge normals are where nothing turns them: their rows of K shape are zero."""
        mesh = meshes.rectangle(0.1, 0.1, 0.025, "cross")
        builder = RobotBuilder()
        builder.add_shell(mesh.nodes, mesh.triangles, 1e-3, Material(1e7, 1000.0, 0.3), "midedge")
        builder.clamp(nodes=np.flatnonzero(mesh.nodes[:, 0] < 1e-9).tolist())
        model = builder.finalize(compile=False)
        state = model.initial_state()
        found = modes(model, state, 3)
        start = model.start_step(state)
        _, values = model.mechanics.force_and_stiffness(start, state.q, state.velocity, state.time)
        shape = found.shape[0][:, model.unknowns.index]
        force = shape @ model.layout.pattern.to_dense(values)[0]
        massless = model.unknowns.algebraic[model.unknowns.index]
        assert massless.any() and force[:, massless].abs().max() < 1e-9 * force[:, ~massless].abs().max()
        pulled = found.eigenvalue[0, :, None] * shape * model.body.mass[model.unknowns.index]
        assert torch.allclose(force, pulled, rtol=0, atol=1e-6 * pulled.abs().max().item())  # rounding, as above

    def test_sparse_and_dense_agree(self, monkeypatch):
        """Find the same by shift-invert as by all eigenvalues at once: zero, in pairs, and negative ones."""
        consistent = rod(60, mass="consistent")
        for model, strain in ((rod(60, clamp=()), 0.0), (rod(60, clamp=(0, 60)), -0.02), (consistent, 0.0)):
            state, found = stretched(model, strain), []
            for limit in (10**6, 0):
                monkeypatch.setattr(eigen, "DENSE", limit)
                found.append(modes(model, state, 10).eigenvalue)
            assert (found[0][0, 0] < 0) == (strain < 0)
            # rounding of the stiffness: see ROUNDING in solve/eigen.py
            assert torch.allclose(found[0], found[1], rtol=1e-7, atol=1e-4)

    def test_each_robot_is_its_own(self):
        """A batch of three stiffnesses, at states of their own: each row is the robot alone."""
        youngs = torch.tensor([[1e6], [1e7], [4e7]], dtype=torch.float64)
        model = rod(10, youngs=youngs)
        found = modes(model, model.initial_state(), 2)
        assert found.eigenvalue.shape == (3, 2) and found.shape.shape == (3, 2, model.n_dofs)
        assert found.frequency[:, 0] / found.frequency[0, 0] == pytest.approx(
            [1, math.sqrt(10), math.sqrt(40)], rel=1e-6
        )
        alone = rod(10, youngs=4e7)
        assert torch.equal(modes(alone, alone.initial_state(), 2).eigenvalue[0], found.eigenvalue[2])

    def test_in_single_precision(self):
        """Call zero what is zero as far as single precision tells, and find frequencies to its rounding."""
        model = rod(10, clamp=())
        double = modes(model, model.initial_state(), 8).frequency
        model = model.to(torch.float32)
        found = modes(model, model.initial_state(), 8)
        assert found.shape.dtype == torch.float32 and (found.eigenvalue[0, :6] == 0).all()
        # the eigenvalue of bending is 70 units in the last place of the largest one, half a unit of which is lost
        assert torch.allclose(found.frequency.double(), double, rtol=5e-3)

    def test_controls_count(self):
        """Say by the imbalance that a straight rod is no equilibrium under a control's natural curvature."""
        model = rod(10)
        state = model.initial_state()
        curved = Control(natural_curvature=torch.full((1, len(model.springs), 2), 0.1, dtype=torch.float64))
        assert modes(model, state, 1).imbalance.item() == 0
        assert modes(model, state, 1, curved).imbalance.item() > 0

    def test_springs_of_contact_count(self):
        """A floor that a rod lies on by penalty stiffens it."""
        floor = Obstacle(HalfSpace((0.0, 0.0, -RADIUS), (0.0, 0.0, 1.0)), Penalty(100.0, 2e-3))
        model, alone = rod(10, contact=floor, planar=True), rod(10, planar=True)
        found, without = (modes(m, m.initial_state(), 1).frequency.item() for m in (model, alone))
        assert found > 1.5 * without


class TestRefusals:
    """What has no modes."""

    @pytest.mark.parametrize("count", [0, 31, True, 2.0])
    def test_counts(self, count):
        """There are as many modes as free dofs with mass: 10 nodes in the plane have 20."""
        model = rod(10, planar=True)
        with pytest.raises(InputError, match="count has to be a whole number from 1 to 20"):
            modes(model, model.initial_state(), count)

    def test_constraints(self):
        """A constraint has no stiffness."""
        floor = Obstacle(HalfSpace((0.0, 0.0, -1.0), (0.0, 0.0, 1.0)), Complementarity())
        model = rod(10, contact=floor)
        with pytest.raises(InputError, match="Complementarity has no stiffness"):
            modes(model, model.initial_state(), 1)

    def test_loads_that_follow(self):
        """Pressure on an open sheet follows it, and may make it flutter."""
        mesh = meshes.rectangle(0.1, 0.1, 0.05, "cross")
        builder = RobotBuilder()
        builder.add_shell(mesh.nodes, mesh.triangles, 1e-3, Material(1e6, 1000.0, 0.3), "midedge")
        builder.clamp(nodes=np.flatnonzero(mesh.nodes[:, 0] < 1e-9).tolist())
        builder.add_force(forces.Pressure(10.0))
        model = builder.finalize(compile=False)
        with pytest.raises(
            InputError, match=r"derivatives of the forces are not symmetric .* Here Pressure may have no"
        ):
            modes(model, model.initial_state(), 3)

    def test_moments_in_space(self):
        """A moment that bends a rod about two axes has no potential, though its direction is fixed; it is named."""
        loads = [forces.PointMoment((5e-5, 1e-4, 0), nodes=[10]), forces.Viscous(0.1)]
        model = rod_through(straight((0, 0, 0), (0.3, 0, 0), 11), Circle(3e-3), Material(1e6, 1e3), loads).finalize()
        settled, _ = Static(load_steps=4).step(model, model.initial_state(), throw=True)
        with pytest.raises(
            InputError,
            match=r"robot 0: the derivatives .* Here PointMoment may have no .*: .* moments in space have none",
        ):
            modes(model, settled, 4)

    def test_not_finite(self):
        """A state that is lost."""
        model = rod(10)
        state = model.initial_state()
        with pytest.raises(InputError, match="not finite"):
            modes(model, state.replace(q=state.q * torch.nan), 1)
        with pytest.raises(InputError, match=r"modes: Control.force of robot 0 .* holds NaN"):
            modes(model, state, 1, Control(force=state.q * torch.nan))
