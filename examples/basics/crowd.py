"""256 robots with random stiffness, in one batch: the softer, the deeper it hangs."""

from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, rollout, straight

import torch

torch.manual_seed(0)
youngs = 10 ** torch.empty(256, 1, dtype=torch.float64).uniform_(6.0, 7.0)  # Pa; (robots, 1): one for all edges

builder = RobotBuilder()
builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), nodes=11), Circle(radius=5e-3), Material(youngs, density=1100.0))
builder.clamp(nodes=[0], direction="rest")
builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
builder.add_force(forces.MassDamping(10.0))
model = builder.finalize()
run = rollout(model, model.initial_state(), ImplicitEuler(dt=5e-2), steps=25)
run.save("crowd.h5")  # torchdismech movie crowd.h5 --robots 0-15 --fps 10

tips = run.positions[-1, :, -1, 2]
print(f"{run.batch} tips hang between {tips.min():.3f} and {tips.max():.3f} m")
assert not run.failed.any() and (tips[youngs.flatten().argsort()].diff() > 0).all()
