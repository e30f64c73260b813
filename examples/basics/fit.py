"""Fit a stiffness to markers: Young's modulus from noisy positions of four points of a rod."""

from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, straight, trainable, unroll

import torch


def swing(model):
    run = unroll(model, model.initial_state(), ImplicitEuler(dt=5e-2), steps=6)
    return run.positions[:, 0, [4, 6, 8, 10]]  # the markers (frames, 4, 3)


def rod(youngs):
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), nodes=11), Circle(radius=5e-3), Material(youngs, density=1100.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    return builder.finalize()


torch.manual_seed(0)
seen = swing(rod(youngs=2.5e6)) + 1e-3 * torch.randn(7, 4, 3, dtype=torch.float64)  # what a camera saw
guess = 1e6  # Pa
model = rod(guess)
factor = trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2", "bend_twist.GJ", "stretch.EA"])
optimizer = torch.optim.LBFGS(factor.parameters(), max_iter=10, line_search_fn="strong_wolfe")


def misfit():
    optimizer.zero_grad()
    loss = (swing(model) - seen).square().mean() / 1e-6
    loss.backward()
    return loss


optimizer.step(misfit)
found = guess * factor.log_factor.exp().item()
print(f"found {found:.4g} Pa, the markers' rod has 2.5e6 Pa")
assert abs(found / 2.5e6 - 1) < 0.01, "so far from the guess it takes more iterations"
