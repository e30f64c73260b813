"""A gradient through a step: by the state and by the stiffness, checked against differences."""

from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, straight, trainable

import torch

builder = RobotBuilder()
builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), nodes=11), Circle(radius=5e-3), Material(1e6, density=1100.0))
builder.clamp(nodes=[0], direction="rest")
builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
model = builder.finalize()
stiffness = trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"])  # both times exp(stiffness.log_factor)
push = torch.zeros(1, model.n_dofs, dtype=torch.float64, requires_grad=True)  # of the velocity [m/s]


def tip() -> torch.Tensor:
    state, info = ImplicitEuler(dt=0.05).step(model, model.initial_state(velocity=push))
    return state.positions[0, -1, 2]


by_stiffness, by_push = torch.autograd.grad(tip(), [stiffness.log_factor, push])
with torch.no_grad():
    stiffness.log_factor += 1e-4
    above = tip()
    stiffness.log_factor -= 2e-4
    difference = (above - tip()) / 2e-4
print(f"a stiffer rod: {by_stiffness.item():.6e} m, by differences {difference:.6e} m; a push: {by_push[0, 32]:.4f} s")
assert abs(by_stiffness.item() / difference - 1) < 1e-5
