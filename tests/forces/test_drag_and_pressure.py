"""Drag and pressure on triangles in simple cases, and beside an independent implementation."""

import json
import warnings

import numpy as np
import pytest
import torch

from tests.forces.surface_loads import BALLOON, MATERIAL, SIDES, gradient, moving, nodal, per_robot, shell
from tests.reference.loading import load, tensor
from tests.shells import patch, robot
from torchdismech import RobotBuilder
from torchdismech.forces.surface import Drag, Pressure
from torchdismech.geometry.meshes import Mesh, disc
from torchdismech.testing import check_force


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


def matrix_of(force, model, state):
    """Return the derivative (B, n, n) of a pressure by all dofs."""
    (block,), ((by_q, _),) = force.blocks(), force.derivatives(state, None)
    matrix = torch.zeros(state.batch, model.n_dofs, model.n_dofs, dtype=torch.float64)
    for k, (rows, cols) in enumerate(zip(block.rows, block.cols, strict=True)):
        matrix[:, rows[:, None], cols] += by_q[:, k]
    return matrix


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
        matrix = matrix_of(force, model, state)
        assert (matrix - matrix.mT).abs().max() < 1e-14 * matrix.abs().max()

    @pytest.mark.parametrize(
        ("surface", "held", "chosen", "expected"),
        [
            ("balloon", {}, None, True),
            ("disc", {"nodes": "rim"}, None, True),
            ("disc", {"nodes": "rim", "axes": "x"}, None, False),
            ("disc", {"nodes": "rim", "normal": (0, 0, 1)}, None, False),
            ("disc", {"nodes": "half of the rim"}, None, False),
            ("disc", {"nodes": "rim"}, "all but one in the middle", False),
            ("disc", {}, None, False),
        ],
    )
    def test_potential(self, surface, held, chosen, expected):
        """Have one on closed surfaces and where clamps hold the rim: its gradient and matrix on what is free.

        On others the matrix is not symmetric.
        """
        mesh = disc(0.1, 0.05) if surface == "disc" else Mesh(BALLOON, SIDES)
        force = Pressure(
            per_robot(80.0, -30.0), triangles=None if chosen is None else np.arange(1, len(mesh.triangles))
        )
        builder = RobotBuilder()
        builder.add_shell(mesh.nodes + (3.0, 0, 1), mesh.triangles, 1e-3, MATERIAL, "hinge")  # far from the origin
        if held:
            rim = np.linalg.norm(mesh.nodes, axis=1) > 0.099
            nodes = rim if held["nodes"] == "rim" else rim & (mesh.nodes[:, 0] < 0)
            builder.clamp(**{**held, "nodes": nodes})
        builder.add_force(force)
        model = builder.finalize()
        assert force.conservative == expected and model.layout.pattern.symmetric == expected
        state = moving(model, model.initial_state(2))
        matrix = matrix_of(force, model, state)[:, model.free][:, :, model.free]
        assert ((matrix - matrix.mT).abs().max() < 1e-12 * matrix.abs().max()) == expected
        slopes = gradient(lambda at: force.potential(at, None), state)
        moves = model.free[: 3 * state.n_nodes].reshape(-1, 3)
        far = 3.0**2  # m^2, of which volumes far from the origin are differences
        assert torch.allclose(nodal(force, state)[:, moves], -slopes[:, moves], rtol=0, atol=1e-14 * far) == expected
        check_force(force, model, state).raise_if_failed()

    def test_surfaces_inside_out_are_warned_of(self):
        """Name a balloon that is wound inside out, beside one that is not; say nothing of that one, nor of a patch."""
        both = np.concatenate([BALLOON, BALLOON + 1.0])
        turned = np.concatenate([SIDES, SIDES[:, ::-1] + len(BALLOON)])
        with pytest.warns(UserWarning, match="closed surface whose normals point inside, that of triangle 8: above 0"):
            shell(both, turned, Pressure(80.0))
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Pressure")
            shell(both, turned, Pressure(80.0, triangles=np.arange(8)))
            shell(BALLOON, SIDES[::-1, [1, 2, 0]], Pressure(80.0))
            shell(BALLOON, SIDES[:-1, ::-1], Pressure(80.0))

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
