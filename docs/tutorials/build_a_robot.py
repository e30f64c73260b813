# %% [markdown]
# # Build a robot
#
# A robot is rods, shells, or both, that share nodes. This tutorial builds a fin - a sheet that is held along one side
# - with two feelers at its far corners, gives four copies of it four different thicknesses, lets go, and looks at
# what came out. Lengths are in m, masses in kg, forces in N, times in s; arrays of robots have the batch first.

# %%
from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, Trajectory, forces, meshes, rollout, straight

import numpy as np
import torch

# %% [markdown]
# ## A shell
# A `RobotBuilder` collects parts. `meshes` makes nodes and triangles of rectangles, discs and bells;
# `read_mesh("fin.stl")` reads files. A material is Young's modulus in Pa, density in kg/m^3 and, for shells,
# Poisson's ratio.
#
# A number may be a tensor `(robots, 1)`: the four robots differ in how thick their sheet is, and in nothing else.
# Whatever broadcasts against `(robots, elements)` is accepted for every constant.

# %%
sheet = meshes.rectangle(0.2, 0.1, spacing=0.05)
thickness = torch.tensor([[1e-3], [1.5e-3], [2e-3], [3e-3]], dtype=torch.float64)
silicone = Material(youngs=1e7, density=1200.0, poisson=0.3)
builder = RobotBuilder()
fin = builder.add_shell(sheet.nodes, sheet.triangles, thickness, silicone)

# %% [markdown]
# ## Two rods
# A rod is a polyline of nodes with a section and a material; `add_rod` returns the indices of its nodes. Nodes that
# coincide are one: each feeler begins at a corner of the sheet, so it is joined to it, stiffly.
# (`RobotBuilder(joints="pinned")` would tie them like ropes.)

# %%
far = sheet.nodes[:, 0].max()
corners = [np.array([far, y, 0.0]) for y in (0.0, sheet.nodes[:, 1].max())]
feelers = [
    builder.add_rod(straight(corner, corner + [0.08, 0.0, 0.0], nodes=4), Circle(1.5e-3), silicone)
    for corner in corners
]
print(f"{len(builder.nodes)} nodes; the feelers begin at nodes {[int(rod[0]) for rod in feelers]} of the fin")

# %% [markdown]
# ## What holds it, what acts on it
# The nodes along one side are held. Forces are modules: `Gravity` pulls all nodes, `Drag` acts on triangles that move
# against the fluid. `finalize` checks everything and returns the model.

# %%
builder.clamp(box=[(-1e-9, -1, -1), (0.051, 1, 1)])  # two rows of nodes, so that the sheet's slope is held, too
builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
builder.add_force(forces.Drag(density=1.2, coefficient=1.5))
builder.add_force(forces.MassDamping(2.0))
model = builder.finalize()
print(f"{model.n_dofs} unknowns of each robot; {len(model.springs)} springs, {len(model.hinges)} hinges")

# %% [markdown]
# ## Steps
# A state is positions, angles and velocities of all robots. An integrator makes one step of it; `rollout` makes many
# and returns a `Trajectory`. Implicit Euler is the robust choice: it takes large steps and damps fast motion.
# `run.status` (frames, robots) says in every frame, for every robot, whether its steps so far were solved, and if not,
# why; `run.failed` (robots,) is whether one failed in the run.

# %%
run = rollout(model, model.initial_state(), ImplicitEuler(dt=2e-2), steps=25, every=5)
assert not run.failed.any() and run.status.shape == (6, run.failed.numel())
print(
    f"positions {tuple(run.positions.shape)}: frames, robots, nodes, xyz; up to {run.iterations_max.max()} iterations"
)

# %% [markdown]
# ## What came out
# The thinner the sheet, the deeper the feelers hang. Energies and strains are functions of the state, by name.

# %%
tips = run.positions[-1][:, [int(rod[-1]) for rod in feelers], 2].mean(1)
for h, z in zip(thickness.flatten().tolist(), tips.tolist(), strict=True):
    print(f"a sheet of {1e3 * h:.1f} mm: the feelers end {1e3 * z:.1f} mm high")
print({name: [f"{1e3 * value:.3g} mJ" for value in values] for name, values in model.energies(run.state).items()})
assert (tips.diff() > 0).all() and tips[0] < -0.05

# %% [markdown]
# A run is saved in one HDF5 file, which `torchdismech movie fin.h5`, `view` and `plot` show and `Trajectory.load`
# reads back.

# %%
run.save("fin.h5")
assert Trajectory.load("fin.h5").batch == 4
