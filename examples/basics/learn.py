"""A learned force in the step: a network learns to hold a rod's tip where it is wanted."""

from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, straight, unroll

import torch


class Wind(forces.LocalForce):
    """A force on each node by where it is; Newton's method sees its derivatives."""

    def __init__(self):
        super().__init__(reach=0)
        self.network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()

    def nodal_force(self, state, control):
        return 0.02 * self.network(10 * state.positions)  # (robots, nodes, 3) in N


torch.manual_seed(0)
builder = RobotBuilder()
builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), nodes=6), Circle(radius=4e-3), Material(youngs=3e6, density=1100.0))
builder.clamp(nodes=[0], direction="rest")
builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
builder.add_force(Wind())
model = builder.finalize()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=7, line_search_fn="strong_wolfe")
wanted = torch.tensor([0.18, 0.06, 0.0], dtype=torch.float64)


def miss():
    optimizer.zero_grad()
    run = unroll(model, model.initial_state(), ImplicitEuler(dt=0.15), steps=2)
    loss = (run.positions[-1, 0, -1] - wanted).square().sum()
    loss.backward()
    return loss


before = optimizer.step(miss).item() ** 0.5  # the loss before the first step
after = miss().item() ** 0.5
print(f"the tip ends {before:.3f} m from where it is wanted; with what was learned {after:.4f} m")
assert after < 0.1 * before, "what is farther away takes more iterations, or is out of the rod's reach"
