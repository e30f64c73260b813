"""Reference arrays as models: every per-element value is taken from the file, nothing from this project's defaults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from torchdismech import Circle, Material, Model, RobotBuilder, State

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "reference"


def load(name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a reference file; skip the test where the folder is absent."""
    path = FOLDER / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"reference numbers are not here: {path}")
    with np.load(path, allow_pickle=False) as data:
        return dict(data)


def tensor(array) -> torch.Tensor:
    """Return a float64 tensor."""
    return torch.as_tensor(np.asarray(array, dtype=np.float64))


def reference_model(
    data: dict[str, np.ndarray], prefix: str = "", forces=(), planar: bool = False, clamped: np.ndarray | None = None
) -> Model:
    """Return a model of rods with the file's masses, stiffnesses, lengths, natural strains and directors."""
    get = lambda key: data[prefix + key]  # noqa: E731
    builder = RobotBuilder(planar=planar)
    placeholder = Material(youngs=1.0, density=1.0)
    directors = get("a1_init")
    edges = get("Edges").astype(int)
    nodes = get("nodes0")
    tangent = nodes[edges[:, 1]] - nodes[edges[:, 0]]
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    if np.abs((directors * tangent).sum(1)).max() > 1e-6:  # one-step oracles give them at another shape
        directors = None
    builder.add_rods(nodes, edges, Circle(1e-3), placeholder, directors=directors)
    for force in forces:
        builder.add_force(force)
    fixed = np.zeros(3 * len(nodes) + len(edges), dtype=bool)
    if clamped is not None:
        fixed[clamped] = True
    model = finalized_with(builder, fixed)
    model.body.mass = tensor(get("massVec")).reshape(-1)
    stretch = model.term("stretch")
    assert np.array_equal(get("stretch_nodes"), edges)
    stretch.stencil.rest_length = tensor(get("stretch_refLen"))
    stretch.energy.EA.data = tensor(get("stretch_stiff"))
    springs, reversed_ = spring_order(model, get("bt_nodes"))
    bend = model.term("bend_twist")
    bend.measure = bend.scale = tensor(get("bt_voronoiLen"))[springs]
    bend.energy.EI1.data = tensor(get("bt_EI")[springs, 0])
    bend.energy.EI2.data = tensor(get("bt_EI")[springs, 1])
    bend.energy.GJ.data = tensor(get("bt_GJ")[springs])
    bend.stencil.alignment = torch.zeros(len(springs), dtype=torch.float64)  # the files measure joints without
    natural = get("bt_kappaBar")[springs]
    bend.natural_kappa1 = tensor(natural[:, 0])
    bend.natural_kappa2 = tensor(natural[:, 1] * np.where(reversed_, -1, 1))
    bend.natural_tau = tensor(get("undef_refTwist"))[springs]
    return model


def finalized_with(builder: RobotBuilder, fixed: np.ndarray) -> Model:
    """Finalize with the given fixed dofs (the files list dofs, which a clamp by nodes cannot say)."""
    own = builder._free
    builder._free = lambda edges: own(edges) & ~fixed  # type: ignore[method-assign]
    return builder.finalize()


def spring_order(model: Model, triples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each spring of the model its index in the file, and whether the file has it the other way round.

    A reversed spring has the same kappa1 and tau, and kappa2 with the other sign.
    """
    index = {tuple(t): (i, False) for i, t in enumerate(triples.astype(int))}
    index.update({tuple(t[::-1]): (i, True) for i, t in enumerate(triples.astype(int))})
    found = [index[tuple(t)] for t in model.springs]
    return np.array([i for i, _ in found]), np.array([r for _, r in found])


def reference_state(model: Model, data: dict[str, np.ndarray], suffix: str = "", q: str = "q") -> State:
    """Return the file's state: dofs `q` with the frames a1, tangent and refTwist that belong to it."""
    springs, _ = spring_order(model, data["geo_bt_nodes"])
    state = model.initial_state()
    dofs = tensor(data[q]).reshape(1, -1)
    return state.replace(
        q=dofs,
        director=tensor(data["a1" + suffix])[None],
        tangent=model.tangents(dofs),
        reference_twist=tensor(data["refTwist" + suffix])[springs][None],
    )
