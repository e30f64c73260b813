# %% [markdown]
# # Train a residual force
#
# A model of a real robot is never complete. Here a rod swings in a fluid whose quadratic drag the model does not
# know. A small network acts inside the step, sees how fast each node moves, and learns the force that is missing from
# recorded positions alone. No force is ever measured.

# %%
from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, State, forces, straight, unroll

import torch

torch.manual_seed(0)
DT, LENGTH, NODES = 3e-2, 0.3, 6


# %% [markdown]
# ## The recordings
# Something that nobody knows made them: the same rod with a drag of `- c |u| u` on each node. A force of one's own
# writes `nodal_force`, and says from how far away it depends on anything, in edges (`reach`).


# %%
class Unknown(forces.LocalForce):
    """Quadratic drag on each node."""

    def nodal_force(self, state, control):
        """Return the force (B, N, 3) [N]."""
        u = state.node_velocities
        return -0.03 * (u.square().sum(-1, keepdim=True) + 1e-9).sqrt() * u


def rod(extra: forces.Force):
    """Return a hanging rod with gravity and one force more."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0, 0, -LENGTH), NODES), Circle(5e-3), Material(youngs=1e6, density=1100.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    builder.add_force(extra)
    return builder.finalize()


def pushed(model, speed: torch.Tensor) -> State:
    """Return states of rods at rest but for a speed (robots, 2) [m/s] to the side that grows towards the tip."""
    velocity = torch.zeros(len(speed), NODES, 3, dtype=torch.float64)
    velocity[:, :, :2] = speed[:, None] * torch.linspace(0, 1, NODES, dtype=torch.float64)[:, None]
    rest = torch.zeros(len(speed), model.n_dofs, dtype=torch.float64)
    rest[:, : 3 * NODES] = velocity.flatten(1)
    return model.initial_state(velocity=rest)


truth = rod(Unknown(reach=0))
speeds = 3 * torch.randn(6, 2, dtype=torch.float64)
with torch.no_grad():
    recorded = unroll(truth, pushed(truth, speeds), ImplicitEuler(DT), steps=8).positions
recorded = recorded + 2e-4 * torch.randn_like(recorded)  # markers are seen to 0.2 mm

# %% [markdown]
# ## The network
# It maps the velocity of a node to a force on it. Two choices make it learn well: it starts as exactly nothing (its
# last layer is zero), so the model is never worse than the physics alone; and it gives a scalar times the velocity,
# so that it turns with the robot. `explicit=True` would hold the force over a step: cheap, and stable while it is
# soft. Here it is implicit, as is anything that says nothing. `records = True` promises that of what it reads nothing
# changes but the state and its parameters; then steps are recorded and replayed, which takes a third less time here.


# %%
class Residual(forces.LocalForce):
    """A force along each node's velocity, by how fast it is."""

    records = True

    def __init__(self):
        super().__init__(reach=0)
        self.network = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
        torch.nn.init.zeros_(self.network[-1].weight)
        torch.nn.init.zeros_(self.network[-1].bias)

    def nodal_force(self, state, control):
        """Return the force (B, N, 3) [N]."""
        u = state.node_velocities
        return -0.05 * self.network(u.square().sum(-1, keepdim=True)) * u


residual = Residual()
model = rod(residual)

# %% [markdown]
# ## Training
# Unroll from the recorded beginning, compare positions, step the optimiser. All six recordings are one batch. A
# gradient costs about as much as the steps. With long recordings start from many places in them and let the horizon
# grow; `torchdismech train` does that, with checkpoints, repair of recordings and TensorBoard.

# %%
optimizer = torch.optim.Adam(residual.parameters(), lr=0.1)
with torch.no_grad():  # a state knows its acceleration, and so the network: it is made without a graph, once
    start = pushed(model, speeds)
errors = []
for _ in range(24):
    seen = unroll(model, start, ImplicitEuler(DT), steps=8).positions
    loss = (seen - recorded).square().sum(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    errors.append(loss.detach().sqrt().item())
print(f"error: {1e3 * errors[0]:.2f} mm by the physics alone, {1e3 * errors[-1]:.2f} mm with the learned force")
assert errors[-1] < 0.2 * errors[0]

# %% [markdown]
# ## Does it hold elsewhere?
# On a push that it has never seen, of a size that it has, the error has to fall as well. Beyond the velocities of the
# recordings nothing is promised: a network knows what it has seen.

# %%
fresh = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
physics = rod(Residual())
with torch.no_grad():
    true, learned, alone = (
        unroll(m, pushed(m, fresh), ImplicitEuler(DT), steps=8).positions for m in (truth, model, physics)
    )
with_it, without = (float((p - true).norm(dim=-1).mean()) for p in (learned, alone))
print(f"a new push: {1e3 * without:.2f} mm by the physics alone, {1e3 * with_it:.2f} mm with the learned force")
assert with_it < 0.3 * without
