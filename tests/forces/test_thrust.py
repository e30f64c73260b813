"""Thrust of bells that contract and refill."""

import warnings

import numpy as np
import pytest
import torch

from tests.forces.surface_loads import gradient, moving, nodal, shell
from tests.reference.loading import tensor
from torchdismech import ImplicitEuler
from torchdismech.forces.thrust import Thrust
from torchdismech.geometry.meshes import hemisphere


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

    def test_a_bell_inside_out_is_warned_of(self):
        """Warn of normals that point into the bell, but not of a flat one."""
        mesh = hemisphere(self.RADIUS, 0.012)
        with pytest.warns(UserWarning, match="the triangles' normals point into the bell"):
            shell(mesh.nodes, mesh.triangles[:, ::-1], Thrust(1.0, 1e-6))
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Thrust")
            shell(mesh.nodes * [1, 1, 0] + [0, 0, 0.3], mesh.triangles[:, ::-1], Thrust(1.0, 1e-6))
            shell(mesh.nodes, mesh.triangles, Thrust(1.0, 1e-6))

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
