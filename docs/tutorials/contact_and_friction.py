# %% [markdown]
# # Contact and friction
#
# Robots touch half-spaces, balls, capsules, cylinders, boxes and meshes, and themselves. There are three ways to say
# how surfaces answer; this tutorial lets rods slide down a slope with two of them and holds the numbers against
# Coulomb's law.

# %%
import math

from torchdismech import Circle, ImplicitEuler, Material, Model, RobotBuilder, forces, rollout, straight
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.contact.response import Response

import torch

# %% [markdown]
# ## A slope
# A short rod lies across a slope of 20 degrees. On the slope a body at rest stays at rest if the coefficient of
# friction mu is above tan(20 degrees) = 0.364; else it is accelerated by g (sin - mu cos). Four robots have four
# coefficients: numbers of contact may differ from robot to robot, too.

# %%
ANGLE, GRAVITY, RADIUS = math.radians(20), 9.81, 3e-3
FRICTION = torch.tensor([[0.0], [0.1], [0.3], [0.5]], dtype=torch.float64)


def rods_on_a_slope(response: Response, friction: Friction) -> Model:
    """Return four rods that lie across a slope, which goes down along x, and just touch it."""
    builder = RobotBuilder()
    builder.add_rod(
        straight((0, -0.05, RADIUS), (0, 0.05, RADIUS), nodes=5), Circle(RADIUS), Material(1e6, density=1100.0)
    )
    # the slope is the plane z = 0, and gravity is turned
    builder.add_force(forces.Gravity((GRAVITY * math.sin(ANGLE), 0.0, -GRAVITY * math.cos(ANGLE))))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), response, friction, name="slope"))
    return builder.finalize()


# %% [markdown]
# ## By penalty
# Surfaces overlap by their load over twice the stiffness, if the tolerance is at most five times that; with more
# tolerance, or more stiffness, they would float above each other (docs/contact.md, "Which response"). The weight of a
# node here is 0.008 N, so 20 N/m lets them overlap by 0.2 mm, a fifteenth of the radius, and the tolerance may be 1 mm
# or less. Friction is smoothed: below the slip velocity it grows with the velocity, so what sticks creeps. Choose it a
# hundred times below the velocities that matter.

# %%
soft = rods_on_a_slope(Penalty(stiffness=20.0, tolerance=5e-4), Friction(FRICTION, slip_velocity=1e-3))
stepper = ImplicitEuler(dt=5e-3, max_substeps=16)
run = rollout(soft, soft.initial_state(batch=4), stepper, steps=40, every=4)
assert not run.failed.any()
way = run.positions[-1, :, :, 0].mean(-1)
print(f"overlaps up to {1e3 * run.contact['penetration'].max():.3f} mm")

# %% [markdown]
# The distances after 0.2 s beside g (sin - mu cos) t^2 / 2. Implicit Euler is of first order: a free fall in steps of
# dt goes dt / t too far, 2.5 % here.

# %%
pull = (math.sin(ANGLE) - FRICTION.flatten() * math.cos(ANGLE)).clamp(min=0)
theory = 0.5 * GRAVITY * pull * 0.2**2
for mu, x, y in zip(FRICTION.flatten().tolist(), way.tolist(), theory.tolist(), strict=True):
    print(f"mu = {mu:.1f}: slid {1e3 * x:7.3f} mm, theory {1e3 * y:7.3f} mm")
assert ((way - theory).abs() < 0.05 * theory + 2e-4).all()

# %% [markdown]
# ## As constraints
# `Complementarity` solves for the contact loads: no overlap, and what sticks does not move at all. There is nothing
# to tune, each iteration costs a small contact problem, and impacts are inelastic.

# %%
exact = rods_on_a_slope(Complementarity(), Friction(FRICTION))
held = rollout(exact, exact.initial_state(batch=4), stepper, steps=40, every=4)
assert not held.failed.any()
stuck = held.positions[-1, 3, :, 0].abs().max()
print(f"mu = 0.5: by constraints the rod moved {1e3 * stuck:.2e} mm, by penalty {1e3 * way[3]:.2e} mm")
assert stuck < 1e-6 and held.contact["penetration"].max() < 1e-7

# %% [markdown]
# ## What is reported
# `run.contact` has for each frame and robot how many contacts are active, stick and slide, the largest overlap since
# the frame before, and the force of each obstacle.

# %%
print({name: tuple(values.shape) for name, values in held.contact.items()})
normal_force = held.contact["force/slope"][-1, :, 2]
weight = GRAVITY * exact.body.node_mass().sum()
assert torch.allclose(normal_force, weight * math.cos(ANGLE) * torch.ones(4, dtype=torch.float64), rtol=1e-6)

# %% [markdown]
# ## With itself
# `SelfContact` lets parts of a robot touch each other. A rod falls across another one that lies between two clamps.
# Where the step is too long for what happens in it - a body would pass through another one - the robot's step fails
# rather than go through, and `max_substeps` takes it again in parts.

# %%
builder = RobotBuilder()
rail = builder.add_rod(straight((-0.05, 0, 0), (0.05, 0, 0), nodes=9), Circle(RADIUS), Material(1e7, 1100.0))
builder.add_rod(straight((0, -0.03, 0.02), (0, 0.03, 0.02), nodes=6), Circle(RADIUS), Material(1e6, 1100.0))
builder.clamp(nodes=[rail[0], rail[-1]], direction="rest")
builder.add_force(forces.Gravity((0.0, 0.0, -GRAVITY)))
builder.add_contact(SelfContact(Penalty(stiffness=100.0, tolerance=5e-4), Friction(0.5, slip_velocity=1e-3)))
crossed = builder.finalize()
fall = rollout(crossed, crossed.initial_state(), stepper, steps=30, every=3)
lowest = fall.positions[-1, 0, len(rail) :, 2].min()
print(f"the rod lies {1e3 * lowest:.2f} mm above the rail; two radii are {2e3 * RADIUS:.2f} mm")
assert not fall.failed.any() and fall.contact["active"][-1, 0] > 0 and lowest > -0.03
