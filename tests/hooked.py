"""Forces of users and the rods that they act on."""

import torch
from torch import nn

from tests.rods import rod_through
from torchdismech import (
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    forces,
    helix,
)

INTEGRATORS = {
    "euler": ImplicitEuler(0.005, force_tolerance=1e-11, relative_tolerance=0),
    "midpoint": ImplicitMidpoint(0.005, force_tolerance=1e-11, relative_tolerance=0),
    "newmark": Newmark(0.005, force_tolerance=1e-11, relative_tolerance=0),
}


RATE = 800.0  # 1/s; explicit steps of 5 ms multiply the velocity by -3


class OwnDamping(forces.Force):
    """Mass damping as a user writes it: nothing but `forward`."""

    def forward(self, state, control):
        """Return -rate m v on nodes and angles."""
        return -RATE * self.body.mass * state.velocity


class Swirl(forces.Force):
    """A force on nodes and twist angles that depends on neighbours, positions and velocities; not symmetric."""

    def forward(self, state, control):
        """Return pushes along and across the edges, and torques."""
        x, u, edges = state.positions, state.node_velocities, torch.as_tensor(self.body.rod_edges)
        e = x[:, edges[:, 1]] - x[:, edges[:, 0]]
        push = 0.1 * torch.linalg.cross(u[:, edges[:, 0]], e) + 0.01 * torch.tanh(30 * e)
        total = torch.zeros_like(x).index_add(1, edges[:, 1], push)
        return torch.cat([total.flatten(1), 1e-4 * torch.sin(state.twist) * e[..., 2]], dim=1)


class Centred(forces.Force):
    """A spring of every node to the mean of all: every dof depends on every other."""

    def forward(self, state, control):
        """Return the force towards the mean position."""
        x = state.positions
        return self.body.on_nodes(-0.5 * (x - x.mean(1, keepdim=True)))


class Learned(forces.Force):
    """A network on each edge, whose last layer starts from zero: untrained it depends on nothing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        nn.init.zeros_(self.network[2].weight)
        nn.init.zeros_(self.network[2].bias)

    def forward(self, state, control):
        """Return equal and opposite pushes on the ends of edges."""
        x, u, edges = state.positions, state.node_velocities, torch.as_tensor(self.body.rod_edges)
        start, end = edges[:, 0], edges[:, 1]
        push = 1e-3 * self.network(torch.cat([x[:, end] - x[:, start], u[:, end] - u[:, start]], dim=-1))
        return self.body.on_nodes(torch.zeros_like(x).index_add(1, start, push).index_add(1, end, -push))


def rod(*loads, batch=None, clamp=True, energy=None, youngs=1e6):
    """Return a rod of seven nodes, curved and clamped, with the forces."""
    shape = helix((0, 0, 0), (0.05, 0, 0), (0, 0.1, 1), 4.0, 0.1, 7)
    stiffness = youngs if batch is None else torch.linspace(youngs, 2 * youngs, batch, dtype=torch.float64)[:, None]
    builder = rod_through(shape, Circle(2e-3), Material(stiffness, 1000.0), loads, "edge" if clamp else "not")
    if energy is not None:
        builder.add_energy("bend_twist", energy)
    return builder.finalize(compile=False)


def moving(model, batch=2):
    """Return states of robots that are bent and move."""
    noise = torch.randn(2, batch, model.n_dofs, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    rest = model.initial_state(batch=batch)
    if model.planar:
        noise[0][:, model.unknowns.out_of_plane] = 0.0
    placed = model.initial_state(q=rest.q + 1e-4 * noise[0])
    return model.accelerated(placed.replace(velocity=0.01 * noise[1]))  # clamped dofs, too


def assert_matrix_is_derivative(integrator, model, state):
    """Hold the matrix of a step from a state against differences of its residual."""
    balance = integrator.equations(model, state)
    x = model.unknowns.of_dofs(state.q)
    _, values = balance.residual_and_matrix(x)
    pattern, size = model.layout.pattern, x.shape[1]
    dense = torch.zeros(x.shape[0], size, size, dtype=torch.float64)
    dense[:, pattern.rows, pattern.cols] = values.t()
    if pattern.symmetric:
        dense = dense + dense.tril(-1).mT
    for k in {*range(0, size, 5), size - 1}:  # the last is the angle of a clamp that lets rods turn
        step = torch.zeros_like(x)
        step[:, k] = 1e-6
        column = (balance.residual(x + step) - balance.residual(x - step)) / 2e-6
        scale = dense.abs().amax((1, 2))[:, None]
        assert ((dense[:, :, k] - column).abs() / scale).max() < 1e-6  # truncation and rounding of differences
