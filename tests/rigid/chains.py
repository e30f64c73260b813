"""The cable of the references, and the references themselves."""

from pathlib import Path

import numpy as np
import torch

from torchdismech.rigid import RigidChain

DATA = Path(__file__).parents[1] / "reference" / "data"


def reference(name):
    """Return the arrays of a reference file."""
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as data:
        return dict(data)


def cable(segments, space=False, **changes):
    """Return the cable as a chain; without springs and dampers where `springs` is False."""
    springs = changes.pop("springs", True)
    given = {
        "length": 1.2,
        "diameter": 6e-3,
        "density": 2710.0,
        "youngs": 7e10 / 3,
        "viscosity": 1e9,
        "shear": 2.7e10 / 3 if space else None,
        "base": (0.0, 0.0, 0.5),
    }
    chain = RigidChain.cylinder(segments, **(given | changes), space=space)
    for name in chain.per_robot if not springs else ():
        if name.startswith(("stiffness", "damping")):
            getattr(chain, name).zero_()
    return chain


def tensor(array):
    """Return a float64 tensor."""
    return torch.as_tensor(np.asarray(array, dtype=np.float64))


def random_motion(chain, batch, seed=0, size=0.3):
    """Return q, velocity and torque (B, J), large enough that nothing is nearly linear."""
    generator = torch.Generator().manual_seed(seed)
    shape = (3, batch, chain.n_dofs)
    return (size * torch.randn(shape, generator=generator, dtype=torch.float64)).unbind(0)
