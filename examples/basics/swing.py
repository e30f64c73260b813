"""A rod swings: let go, its tip is back after the period of Euler-Bernoulli theory."""

import math

from torchdismech import Circle, ImplicitMidpoint, Material, RobotBuilder, forces, rollout, straight

length, radius, youngs, density = 0.2, 4e-3, 1e8, 1100.0  # m, m, Pa, kg/m^3
stiffness, mass = youngs * math.pi / 4 * radius**4, density * math.pi * radius**2  # N m^2, kg/m
period = 2 * math.pi * (length / 1.8751) ** 2 * math.sqrt(mass / stiffness)  # of theory [s]

builder = RobotBuilder()
builder.add_rod(straight((0, 0, 0), (length, 0, 0), nodes=21), Circle(radius), Material(youngs, density))
builder.clamp(nodes=[0], direction="rest")  # held at its first node, in the direction that it has there
builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
model = builder.finalize()
run = rollout(model, model.initial_state(), ImplicitMidpoint(dt=period / 60), steps=75)

height = run.positions[:, 0, -1, 2]  # positions: (frames, robots, nodes, 3) in m
back = run.time[38:][height[38:].argmax()]
print(f"the tip sinks to {height.min():.4f} m and is back after {back:.3f} s; theory: {period:.3f} s")
assert abs(back / period - 1) < 0.02, "theory is that of small swings"
