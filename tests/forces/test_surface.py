"""Forces on triangles: their derivatives, batches and symmetries, and what cannot be meant."""

import numpy as np
import pytest
import torch

from tests.forces.surface_loads import BALLOON, MATERIAL, NAMES, SIDES, loads, moving, shell
from tests.shells import robot
from torchdismech import Circle, ImplicitEuler, InputError, RobotBuilder, straight
from torchdismech.forces.surface import Drag, Pressure
from torchdismech.forces.thrust import Thrust
from torchdismech.testing import check_force, check_symmetry


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
            ([2, 2], r"each once, got \[2, 2\]"),
            ([0.5], r"got \[0.5\]"),
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
