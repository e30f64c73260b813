"""A shell falls on a sphere: a sheet of silicone drapes itself over a ball."""

from torchdismech import ImplicitEuler, Material, RobotBuilder, forces, meshes, rollout
from torchdismech.contact import Friction, Obstacle, Penalty, Sphere

sheet = meshes.disc(radius=0.12, spacing=0.02)
builder = RobotBuilder()
builder.add_shell(sheet.nodes, sheet.triangles, thickness=2e-3, material=Material(youngs=1e5, density=1100.0))
builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
builder.add_force(forces.MassDamping(5.0))  # 1/s
ball = Sphere(center=(0, 0, -0.082), radius=0.08)
builder.add_contact(Obstacle(ball, Penalty(stiffness=300.0, tolerance=5e-4), Friction(0.5, slip_velocity=1e-2)))
model = builder.finalize()
run = rollout(model, model.initial_state(), ImplicitEuler(dt=1e-2, max_substeps=16), steps=60, every=10)

rim = run.positions[-1, 0, :, 2].min()
weight = 9.81 * model.body.node_mass().sum()
load = run.contact["force/obstacle"][-1, 0, 2]
print(f"the rim hangs at {rim:.3f} m, the ball carries {load / weight:.3f} of the weight")
assert not run.failed.any() and rim < -0.05 and abs(load / weight - 1) < 0.05
