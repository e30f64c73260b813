# %% [markdown]
# # Control
#
# A soft arm bends by its natural curvature: muscles, air chambers or heat change the shape that it has without load.
# This tutorial first prescribes such a change over time, then closes a loop with a PI law, and then lets a gradient
# choose the law's gains.

# %%
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    RobotBuilder,
    control,
    forces,
    rollout,
    straight,
    trainable,
    unroll,
)

import torch

NODES, LENGTH, DT = 9, 0.1, 2e-2

builder = RobotBuilder(planar=True)  # keep to the x-z plane: no twist, fewer unknowns
builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), NODES), Circle(1.5e-3), Material(youngs=1e7, density=1200.0))
builder.clamp(nodes=[0], direction="rest")
builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
builder.add_force(forces.Viscous(0.1))
model = builder.finalize()

# %% [markdown]
# ## Open loop
# A schedule is a function of time and model that returns the `Control` of a step. Natural curvature is given for each
# spring, integrated over its length, so an arm that shall bend to a radius R has `spacing / R` everywhere. Here it
# grows to a radius of 10 cm within half a second. A controller that has nothing to say about a field leaves it
# `None`.

# %%
SPACING = LENGTH / (NODES - 1)


def curling(time, model):
    """Return natural curvatures that grow for half a second."""
    own = model.natural_strains(len(time))
    bend = (time / 0.5).clamp(max=1.0)[:, None] * SPACING / 0.1
    curvature = own.natural_curvature.clone()
    curvature[..., 0] += bend
    return Control(natural_curvature=curvature)


open_loop = rollout(model, model.initial_state(), ImplicitEuler(DT), steps=40, schedule=curling)
assert not open_loop.failed.any()

# %% [markdown]
# Curvature above zero bends a rod towards the first director of its sections, which points up where a rod was built
# along +x (docs/rods.md, "Which way it bends"). So an arc of 0.1 m with a radius of 0.1 m ends at
# `R (sin 1, 1 - cos 1)`. The arm gets near, and hangs below: gravity bends it, and an open loop does not know.

# %%
s = torch.linspace(0, 1, NODES, dtype=torch.float64)
arc = 0.1 * torch.stack([torch.sin(s), 0 * s, 1 - torch.cos(s)], dim=1)


def miss(positions):
    """Return how far the tip is from the arc's end (robots,) [m]."""
    return (positions[:, -1] - arc[-1]).norm(dim=-1)


print(f"open loop: the tip ends {1e3 * miss(open_loop.positions[-1]).item():.1f} mm from the arc's end")

# %% [markdown]
# ## Closed loop
# `control.PI` measures strains and feeds their errors back to natural strains. What it measures is named, what it
# follows is a reference: here the strains of the arc. The integral finds the curvature that holds the weight.

# %%
strains = control.Strains(model, ["curvature"])
target = control.Fixed(strains.of_shape(model, arc))
loop = control.PI(model, strains, target, dt=DT, Kp=0.2, Ki=8.0)
closed = rollout(model, model.initial_state(), ImplicitEuler(DT), steps=40, controller=loop)
assert not closed.failed.any()
print(f"closed loop: {1e3 * miss(closed.positions[-1]).item():.2f} mm")
assert miss(closed.positions[-1]) < 0.2 * miss(open_loop.positions[-1])

# %% [markdown]
# ## Gains by gradient
# `unroll` differentiates through steps and controller. Both gains are scaled, each by its own factor that stays
# positive; the loss is the miss over the last part of the run.

# %%
slow = control.PI(model, strains, target, dt=DT, Kp=0.1, Ki=2.0)
gains = trainable.scaled(slow, ["Kp"]), trainable.scaled(slow, ["Ki"])
optimizer = torch.optim.Adam([p for gain in gains for p in gain.parameters()], lr=0.5)
losses = []
for _ in range(3):
    seen = unroll(model, model.initial_state(), ImplicitEuler(DT), steps=15, controller=slow).positions
    loss = torch.stack([miss(p) for p in seen[5:]]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"mean miss from 0.1 s on: {1e3 * losses[0]:.1f} mm, after {len(losses)} steps {1e3 * losses[-1]:.1f} mm")
assert losses[-1] < 0.8 * losses[0]
