"""Forces on triangles: their derivatives, their symmetries, what they add up to in simple cases."""

import json

import numpy as np
import pytest
import torch

from tests.reference.loading import load, tensor
from tests.shells import patch, robot
from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, straight
from torchdismech.forces.surface import Drag, Pressure, Thrust
from torchdismech.geometry.meshes import hemisphere
from torchdismech.testing import check_force, check_symmetry

MATERIAL = Material(1e5, 1000.0, 0.3)
# an octahedron, counter-clockwise seen from the outside, sheared so that nothing is symmetric by accident
CORNERS = np.array([[1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]]) * 0.1
BALLOON = CORNERS @ np.array([[1, 0.2, 0], [0, 0.8, 0.1], [0.3, 0, 1.2]])
SIDES = np.array([[0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4], [1, 0, 5], [2, 1, 5], [3, 2, 5], [0, 3, 5]])


def per_robot(*values):
    """Return values of two robots (2, 1)."""
    return tensor(values)[:, None]


def loads(explicit=False):
    """Return one of each force, with parameters of each robot's own."""
    return {
        "drag": Drag(per_robot(300, 1000), per_robot(0.7, 1.3), explicit),
        "pressure": Pressure(per_robot(50, -20)),
        "pressure on some": Pressure(30.0, triangles=[1, 4, 2]),
        "thrust": Thrust(per_robot(200, 300), 1e-6, refill=per_robot(0.3, 0), explicit=explicit),
        "thrust along an axis": Thrust(200.0, 1e-5, axis=tensor([[0, 0, 2], [1, -1, 0.5]]), explicit=explicit),
    }


NAMES = list(loads())


def shell(nodes, triangles, *forces, batch=1):
    """Return a free shell with the forces, and its state at rest."""
    builder = RobotBuilder()
    builder.add_shell(nodes, triangles, 1e-3, MATERIAL, "hinge")
    for force in forces:
        builder.add_force(force)
    model = builder.finalize()
    return model, model.initial_state(batch=batch)


def moving(model, state, seed=0):
    """Return the state deformed by some percent, moving with 1 m/s."""
    generator = torch.Generator().manual_seed(seed)
    size = model.body.typical_length().item()
    noise = torch.randn(2, *state.q.shape, dtype=torch.float64, generator=generator)
    return state.replace(q=state.q + 0.1 * size * noise[0], velocity=noise[1])


def nodal(force, state):
    """Return the force on the nodes (B, N, 3)."""
    return force(state, None)[:, : 3 * state.n_nodes].unflatten(1, (-1, 3))


def gradient(value, state, name="q"):
    """Return the derivative (B, N, 3) of sum(value(state)) by q or velocity."""
    at = getattr(state, name).clone().requires_grad_()
    (found,) = torch.autograd.grad(value(state.replace(**{name: at})).sum(), at)
    return found[:, : 3 * state.n_nodes].unflatten(1, (-1, 3))


class TestContract:
    """Derivatives, batches and symmetries of every force."""

    @pytest.mark.parametrize("shape", ["hinge", "midedge_rod"])
    @pytest.mark.parametrize("name", NAMES)
    def test_derivatives_against_differences(self, name, shape):
        """Hold both derivatives against central differences over all dofs, those of rods and normals included."""
        force = loads()[name] if name != "pressure on some" else Pressure(30.0, triangles=[1, 0])
        model = robot(shape, [force])
        model.body.face_area = torch.stack([model.body.face_area, 1.5 * model.body.face_area])
        for seed in range(3):
            check_force(force, model, moving(model, model.initial_state(batch=2), seed)).raise_if_failed()

    @pytest.mark.parametrize("name", NAMES)
    def test_derivatives_against_autograd(self, name):
        """Agree with the derivatives that autograd finds in the force itself."""
        force = loads()[name]
        model = robot("hinge", [force])
        state = moving(model, model.initial_state(batch=2))
        dense = torch.zeros(2, 2, model.n_dofs, model.n_dofs, dtype=torch.float64)
        for block, values in zip(force.blocks(), force.derivatives(state, None), strict=True):
            for kind, entries in enumerate(values):
                for s in range(len(block.rows) if entries is not None else 0):
                    dense[kind][:, block.rows[s][:, None], block.cols[s]] += entries[:, s]
        for kind, field in enumerate(("q", "velocity")):
            for i in range(2):
                row = state.rows([i])
                alone = robot("hinge", [self.of_robot(name, i)], batch=False).forces[0]
                function = lambda v, row=row, field=field, alone=alone: alone(row.replace(**{field: v}), None)[0]  # noqa: E731
                expected = torch.autograd.functional.jacobian(function, getattr(row, field))[:, 0]
                # both are exact; sums in another order
                assert (dense[kind, i] - expected).abs().max() <= 1e-12 * max(expected.abs().max(), 1e-9)

    @staticmethod
    def of_robot(name, index, explicit=False):
        """Return a force with the parameters of one of the two robots only."""
        force = loads(explicit)[name]
        for parameter in force.parameters():
            if parameter.dim() == 2:
                parameter.data = parameter.data[[index]]
        return force

    @pytest.mark.parametrize("explicit", [False, True])
    @pytest.mark.parametrize("name", NAMES)
    def test_each_robot_as_if_alone(self, name, explicit):
        """Give robot i of a batch, with its own parameters, the force and the step that it has alone."""
        force = loads(explicit)[name]
        model = robot("hinge", [force])
        start = model.initial_state(batch=2)
        start = start.replace(velocity=0.02 * moving(model, start).velocity)
        value = force(start, None)
        for i in range(2):
            alone = self.of_robot(name, i, explicit)
            robot("hinge", [alone], batch=False)
            # the same operations on the same numbers
            assert torch.allclose(alone(start.rows([i]), None)[0], value[i], rtol=1e-13, atol=1e-15)
        state, info = ImplicitEuler(1e-3).step(model, start, throw=True)
        assert info.converged.all()
        for i in range(2):
            twin = robot("hinge", [self.of_robot(name, i, explicit)])
            other, _ = ImplicitEuler(1e-3).step(twin, start, throw=True)
            # the tolerance of Newton's method, far below what the force does in a step
            assert torch.allclose(other.q[i], state.q[i], rtol=0, atol=1e-10)

    @pytest.mark.parametrize("name", NAMES[:-1])
    @pytest.mark.parametrize("shape", ["hinge", "midedge_rod"])
    def test_rigid_motions(self, name, shape):
        """Turn and move with the robot, and do not depend on how nodes and edges are numbered."""
        force = loads()[name] if name != "pressure on some" else Pressure(30.0, triangles=[1, 0])
        model = robot(shape, [force])
        state = moving(model, model.initial_state(batch=2))
        check_symmetry(force, model, state, rotation="any").raise_if_failed()

    @pytest.mark.parametrize("name", NAMES)
    def test_explicit_or_implicit(self, name):
        """Leave an explicit force out of the matrix; with implicit ones Newton still takes few iterations."""
        for explicit in (False, True):
            force = loads(explicit)[name]
            model = robot("hinge", [force])
            assert model.mechanics.conservative(at_rest=False) is force.explicit
            state = model.initial_state(batch=2)
            state = state.replace(velocity=0.1 * moving(model, state).velocity)
            _, info = ImplicitEuler(2e-3).step(model, state, throw=True)
            assert info.iterations.max() <= 10  # quadratic; a wrong matrix takes tens

    def test_by_parameters(self):
        """Let autograd find the derivatives by the parameters: each force is linear in its strength."""
        for force, strength in (
            (Drag(300.0, 0.7), "coefficient"),
            (Pressure(50.0), "pressure"),
            (Thrust(200.0, 1e-6), "coefficient"),
        ):
            model = robot("hinge", [force])
            state = moving(model, model.initial_state(batch=2))
            parameter = getattr(force, strength).requires_grad_()
            total = (force(state, None) * state.velocity).sum()
            (found,) = torch.autograd.grad(total, parameter)
            assert (found * parameter).item() == pytest.approx(total.item(), rel=1e-12)


class TestDrag:
    """Simple flows, and an independent implementation."""

    @pytest.mark.parametrize("sign", [1, -1])
    def test_flat_plate(self, sign):
        """Resist motion across a tilted plate by 1/2 rho C_d A w^2 along its normal, and none along it."""
        force = Drag(1000.0, 1.2)
        nodes, triangles = patch()
        flat = nodes * [1, 1, 0]
        model, state = shell(flat @ np.array([[1, 0, 0], [0, 0.6, 0.8], [0, -0.8, 0.6]]), triangles, force)
        normal = tensor([0, -0.8, 0.6])
        area = model.body.face_area.sum()
        for w, along in ((0.4, 0.0), (0.4, 0.7), (0.0, 0.7)):
            velocity = sign * (w * normal + along * tensor([0, 0.6, 0.8])) + tensor([0.3, 0, 0])
            v = torch.zeros_like(state.velocity)
            v[:, : 3 * state.n_nodes] = velocity.repeat(state.n_nodes)
            expected = -sign * 0.5 * 1000 * 1.2 * area * w**2 * normal
            assert torch.allclose(nodal(force, state.replace(velocity=v)).sum(1)[0], expected, atol=1e-12)

    def test_takes_energy(self):
        """Never push a node along: the power of each is negative or zero."""
        force = Drag(300.0, 0.7)
        model = robot("hinge", [force])
        state = moving(model, model.initial_state(batch=2))
        assert ((nodal(force, state) * state.node_velocities).sum(-1) <= 0).all()

    def test_rest_area_counts(self):
        """Use the rest area of each robot and the present normal: a stretched plate has the same drag."""
        force = Drag(1000.0, 1.0)
        nodes, triangles = patch()
        model, state = shell(nodes * [1, 1, 0], triangles, force, batch=2)
        model.body.face_area = torch.stack([model.body.face_area, 2 * model.body.face_area])
        q = torch.cat([state.q[:1], 3 * state.q[1:]])
        velocity = torch.zeros_like(q)
        velocity[:, 2::3] = 0.5
        drag = nodal(force, state.replace(q=q, velocity=velocity)).sum(1)[:, 2]
        expected = -0.5 * 1000 * 0.25 * model.body.face_area.sum(1)
        assert torch.allclose(drag, expected, rtol=1e-12)

    def test_against_an_independent_implementation(self):
        """Match a force to rounding and its derivative (of a step, u = (q - q0)/dt) to what differences resolve."""
        data = load("oracle_struct_shell_hinge")
        medium = json.loads(str(data["params_json"]))["env"]
        force = Drag(medium["rho"], medium["Cd"])
        model, rest = shell(data["geo_nodes0"], data["geo_faces"].astype(int), force)
        dt = data["dt"].item()
        state = rest.replace(q=tensor(data["q"])[None], velocity=tensor((data["q"] - data["q0"]) / dt)[None])
        expected = tensor(data["Fd"])
        assert (force(state, None)[0] - expected).abs().max() <= 1e-12 * expected.abs().max()
        matrix = torch.zeros(model.n_dofs, model.n_dofs, dtype=torch.float64)
        for block, (by_q, by_velocity) in zip(force.blocks(), force.derivatives(state, None), strict=True):
            entries = by_q if by_velocity is None else by_velocity / dt
            rows, cols = (torch.as_tensor(x) for x in (block.rows, block.cols))
            matrix.index_put_((rows[:, :, None], cols[:, None]), entries[0], accumulate=True)
        differences = tensor(data["Jd_fd"])
        assert (matrix - differences).abs().max() <= 1e-6 * differences.abs().max()


class TestPressure:
    """Open and closed surfaces."""

    def test_closed_surface(self):
        """Push a balloon neither away nor round, with the gradient of p V, whose matrix is symmetric."""
        force = Pressure(80.0)
        model, state = shell(BALLOON, SIDES, force, batch=2)
        state = moving(model, state)
        load, x = nodal(force, state), state.positions

        def volume(s):
            a, b, c = s.positions[:, SIDES].unbind(2)
            return (a * torch.linalg.cross(b, c)).sum((1, 2)) / 6

        assert (volume(state) > 0).all()
        assert torch.allclose(load, 80 * gradient(volume, state), rtol=1e-12, atol=1e-14)
        scale = load.abs().max()
        assert load.sum(1).abs().max() < 1e-14 * 10 * scale  # sums of 24 terms
        assert torch.linalg.cross(x, load).sum(1).abs().max() < 1e-14 * 10 * scale
        (block,), ((by_q, _),) = force.blocks(), force.derivatives(state, None)
        matrix = torch.zeros(2, model.n_dofs, model.n_dofs, dtype=torch.float64)
        for s in range(len(SIDES)):
            matrix[:, block.rows[s][:, None], block.cols[s]] += by_q[:, s]
        assert (matrix - matrix.mT).abs().max() < 1e-14 * matrix.abs().max()

    def test_pushes_outwards(self):
        """Give a flat plate p A along its outside normal, with the present area."""
        force = Pressure(per_robot(10.0, -30.0))
        nodes, triangles = patch()
        model, state = shell(nodes * [1, 1, 0], triangles, force, batch=2)
        q = 2 * state.q
        expected = 4 * model.body.face_area.sum() * tensor([[0, 0, 10], [0, 0, -30]])
        assert torch.allclose(nodal(force, state.replace(q=q)).sum(1), expected, rtol=1e-12, atol=1e-16)

    @pytest.mark.parametrize("chosen", [[3, 0], np.array([3, 0]), torch.arange(8) % 3 == 0])
    def test_some_triangles(self, chosen):
        """Act on the chosen triangles only, named by indices or by a mask."""
        force = Pressure(10.0, triangles=chosen)
        _, state = shell(BALLOON, SIDES, force)
        picked = SIDES[[3, 0]] if not isinstance(chosen, torch.Tensor) else SIDES[chosen.numpy()]
        a, b, c = tensor(BALLOON)[picked].unbind(1)
        expected = 5 * torch.linalg.cross(b - a, c - a).sum(0)
        assert torch.allclose(nodal(force, state).sum(1)[0], expected, rtol=1e-12, atol=1e-15)

    def test_times(self):
        """Push at start < t <= stop, each robot at its own time, with the derivative to match."""
        force = Pressure(10.0, start=0.1, stop=0.3)
        _, state = shell(BALLOON, SIDES, force, batch=4)
        state = state.replace(time=tensor([0.1, 3 * 0.1 - 1e-16, 0.2, 0.31]))
        on = torch.tensor([False, True, True, False])
        assert torch.equal(nodal(force, state).abs().sum((1, 2)) > 0, on)
        ((by_q, by_velocity),) = force.derivatives(state, None)
        assert torch.equal(by_q.abs().flatten(1).sum(1) > 0, on)
        assert by_velocity is None


class TestThrust:
    """A bell that contracts and refills."""

    RADIUS = 0.05

    def bell(self, force, batch=1):
        """Return a hemisphere, open below."""
        mesh = hemisphere(self.RADIUS, 0.012)
        return shell(mesh.nodes, mesh.triangles, force, batch=batch)

    def radial(self, state, rate):
        """Return the state with every node moving towards (or away from) the axis, u = rate * distance."""
        velocity = rate * state.positions * tensor([1, 1, 0])
        return state.replace(velocity=velocity.flatten(1))

    def test_volume_and_flow(self):
        """Measure a hemisphere's volume, and its rate by the derivative of the volume along the motion."""
        force = Thrust(1.0, 1e-6)
        model, state = self.bell(force, batch=2)
        half_ball = 2 / 3 * np.pi * self.RADIUS**3
        assert force.volume(state)[0].item() == pytest.approx(half_ball, rel=0.05)  # a coarse polyhedron inscribed
        shrinking = self.radial(state, -2.0)
        assert torch.allclose(force.expelled(shrinking), 4 * force.volume(state), rtol=1e-12)  # V ~ radius^2 height
        state = moving(model, state)
        expected = -(gradient(force.volume, state) * state.node_velocities).sum((1, 2))
        assert torch.allclose(force.expelled(state), expected, rtol=1e-10)

    def test_rigid_motion_expels_nothing(self):
        """Neither count the bell's own swimming nor its turning as flow, wherever it is."""
        force = Thrust(1.0, 1e-6)
        _, state = self.bell(force)
        state = state.replace(q=state.q + 3.0)
        spin = torch.linalg.cross(tensor([1, -2, 0.5]).expand_as(state.positions), state.positions)
        state = state.replace(velocity=(spin + tensor([1, 2, 3])).flatten(1))
        # speeds of 10 m/s over an area of 0.02 m^2, times rounding of positions 3 m away
        assert force.expelled(state).abs().max() < 1e-14

    @pytest.mark.parametrize("refill", [0.0, 0.4])
    def test_strokes(self, refill):
        """Thrust along the bell by the coefficient times the flow, backwards by a share of it on refilling."""
        force = Thrust(500.0, 1e-6, refill=refill)
        _, state = self.bell(force)
        flow = 4 * force.volume(state)[0].item()  # 250 times the smoothing
        contracting, refilling, resting = (nodal(force, self.radial(state, r)).sum(1)[0] for r in (-2.0, 2.0, 0.0))
        assert contracting.tolist() == pytest.approx([0, 0, 500 * flow], rel=1e-9, abs=1e-12 * 500 * flow)
        assert torch.allclose(refilling, -refill * contracting, rtol=1e-12, atol=0)
        assert resting.abs().max() == 0

    def test_smooth_at_rest(self):
        """Fade with the square of the flow: thrust over flow goes to 0 from both sides."""
        force = Thrust(500.0, 1e-3, refill=0.5)
        _, state = self.bell(force)
        for sign in (1, -1):
            thrusts = [nodal(force, self.radial(state, sign * r)).sum(1)[0, 2].item() for r in (1e-3, 2e-3)]
            assert thrusts[1] / thrusts[0] == pytest.approx(4, rel=1e-3)
        ((position, velocity),) = force.derivatives(state, None)
        assert position.abs().max() == 0
        assert velocity.abs().max() == 0

    def test_shares(self):
        """Spread by rest area over the chosen triangles' nodes, along a fixed axis of any length."""
        mesh = hemisphere(self.RADIUS, 0.012)
        bell = mesh.nodes[mesh.triangles].mean(1)[:, 2] > 0.02
        force = Thrust(500.0, 1e-6, axis=(0, 3.0, 4.0), triangles=bell)
        model, state = shell(mesh.nodes, mesh.triangles, force)
        state = self.radial(state, -2.0)
        load = nodal(force, state)[0]
        total = 500 * force.expelled(state) * tensor([0, 0.6, 0.8])
        corners = torch.zeros(state.n_nodes, dtype=torch.float64)
        area = model.body.face_area[bell] / 3
        corners.index_add_(0, torch.as_tensor(mesh.triangles[bell]).flatten(), area.repeat_interleave(3))
        assert torch.allclose(load, (corners / corners.sum())[:, None] * total, rtol=1e-12)

    def test_bell_swims(self):
        """Carry the momentum that the thrust gives in a step."""
        force = Thrust(500.0, 1e-6)
        model, state = self.bell(force)
        state = self.radial(state, -2.0)
        total = nodal(force, state).sum(1)
        after, _ = ImplicitEuler(1e-3).step(model, state, throw=True)
        mass = model.body.node_mass()[:, None]
        gained = (mass * (after.node_velocities - state.node_velocities)[0]).sum(0)
        assert torch.allclose(gained, 1e-3 * total[0], rtol=0, atol=1e-6 * 1e-3 * total.abs().max().item())


class TestRefusals:
    """What cannot be meant."""

    @pytest.mark.parametrize("name", NAMES)
    def test_a_robot_without_triangles(self, name):
        """Say that the robot has none."""
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 0), (1, 0, 0), 3), Circle(0.01), MATERIAL)
        builder.add_force(loads()[name])
        with pytest.raises(InputError, match="triangles of shells, and the robot has none"):
            builder.finalize()

    @pytest.mark.parametrize(
        ("chosen", "message"),
        [
            ([], "at least one"),
            ([8], r"got \[8\]"),
            ([-1], r"got \[-1\]"),
            ([2, 2], r"got \[2\] too often"),
            ([0.5], "of float64"),
            (np.zeros(8, dtype=bool), "at least one"),
            (np.ones(5, dtype=bool), r"mask \(8,\)"),
        ],
    )
    def test_triangles(self, chosen, message):
        """Name the triangles that are not there."""
        with pytest.raises(InputError, match=message):
            shell(BALLOON, SIDES, Pressure(1.0, triangles=chosen))

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: Drag(float("nan"), 1.0), "finite"),
            (lambda: Drag([1.0, 2.0], 1.0), r"Drag.density: .* got \(2,\)"),
            (lambda: Drag(1.0, torch.ones(2, 3)), "Drag.coefficient"),
            (lambda: Pressure(torch.ones(2)), "Pressure.pressure"),
            (lambda: Pressure(1.0, start=2.0, stop=1.0), "start has to be before stop"),
            (lambda: Thrust(1.0, 0.0), "Thrust.smoothing"),
            (lambda: Thrust(1.0, float("nan")), "Thrust.smoothing"),
            (lambda: Thrust(1.0, 1e-6, axis="z"), "Thrust.axis"),
            (lambda: Thrust(1.0, 1e-6, axis=(0, 0, 0)), "Thrust.axis"),
            (lambda: Thrust(1.0, 1e-6, axis=(0, 1)), "Thrust.axis"),
            (lambda: Thrust(1.0, 1e-6, refill=1.5), "Thrust.refill"),
        ],
    )
    def test_parameters(self, make, message):
        """Name the parameter and what it has to be."""
        with pytest.raises(InputError, match=message):
            make()

    def test_bells(self):
        """Want exactly one rim."""
        with pytest.raises(InputError, match="bell is closed"):
            shell(BALLOON, SIDES, Thrust(1.0, 1e-6))
        with pytest.raises(InputError, match="exactly one rim"):
            shell(BALLOON, SIDES, Thrust(1.0, 1e-6, triangles=[0, 6]))  # two triangles apart: two rims
        with pytest.raises(InputError, match="exactly one rim"):
            shell(BALLOON, SIDES, Thrust(1.0, 1e-6, triangles=[0, 2]))  # they touch at a node
