"""Reference arrays as models: every per-element value is taken from the file, nothing from this project's defaults."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import torch

from tests.shells import first_normal
from torchdismech import Circle, Material, Model, RobotBuilder, State
from torchdismech.builder import robot

FOLDER = Path(__file__).with_name("data")


def load(name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a reference file; see `data/README.md`."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as data:
        return dict(data)


def tensor(array) -> torch.Tensor:
    """Return a float64 tensor."""
    return torch.as_tensor(np.asarray(array, dtype=np.float64))


class Correspondence:
    """How a file's structure is numbered here: edges of shells and joints may come in another order and direction.

    Attributes
    ----------
    edges, signs : (A,) the file's edge for each framed edge of the model, -1 where it is stored the other way round.
    dofs : (n,) the file's dof for each of the model's; dof_signs : (n,) likewise +1 or -1.
    """

    def __init__(self, model: Model, data: dict[str, np.ndarray], prefix: str):
        file_edges = data[prefix + "Edges"].astype(int)
        framed = model.body.framed_edges
        self.edges, self.signs = matched(framed, file_edges)
        n_nodes = model.body.n_nodes
        twists = len(data[prefix + "a1_init"])
        normals = np.arange(len(framed)) >= first_normal(model.body) - 3 * n_nodes
        angle = self.edges.copy()
        # the file numbers a scalar xi for every edge of a shell, after all twist angles
        angle[normals] = twists + self.edges[normals] - (len(file_edges) - len(model.body.surface.edges))
        self.dofs = np.concatenate([np.arange(3 * n_nodes), 3 * n_nodes + angle])
        self.dof_signs = np.concatenate([np.ones(3 * n_nodes), self.signs])

    def ours(self, values: np.ndarray) -> torch.Tensor:
        """Return the file's dofs or forces (n_file,) as the model numbers them, (1, n)."""
        return tensor(np.asarray(values).reshape(-1)[self.dofs] * self.dof_signs)[None]

    def ours_matrix(self, matrix: np.ndarray) -> np.ndarray:
        """Return the file's matrix as the model numbers it."""
        return matrix[np.ix_(self.dofs, self.dofs)] * self.dof_signs[:, None] * self.dof_signs


def matched(ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of each of our edges among theirs, and -1 where they store it the other way round."""
    index = {tuple(e): (i, 1) for i, e in enumerate(theirs.tolist())}
    index.update({tuple(e[::-1]): (i, -1) for i, e in enumerate(theirs.tolist())})
    found = [index[tuple(e)] for e in ours.tolist()]
    return np.array([i for i, _ in found], dtype=int), np.array([s for _, s in found], dtype=float)


def reference_model(
    data: dict[str, np.ndarray],
    prefix: str = "",
    forces=(),
    planar: bool = False,
    clamped: np.ndarray | None = None,
    joints: str = "stiff",
    contacts=(),
    radius: float = 1e-3,
) -> Model:
    """Return a model with the file's masses, stiffnesses, lengths, natural strains and directors."""
    get = lambda key: data[prefix + key]  # noqa: E731
    builder = RobotBuilder(planar=planar, joints=joints, curvature="averaged")  # as all references
    placeholder = Material(youngs=1.0, density=1.0, poisson=0.3)
    nodes = get("nodes0")
    rods = int(data.get(prefix + "n_rod_edges", [[0]])[0][0] + data.get(prefix + "n_joint_edges", [[0]])[0][0])
    faces = data.get(prefix + "faces", np.zeros((0, 3))).astype(int)
    edges = get("Edges").astype(int)[: rods if len(faces) else None]
    if len(edges):
        builder.add_rods(nodes, edges, Circle(radius), placeholder, directors=_directors(get, nodes, edges))
    if len(faces):
        bending = "midedge" if prefix + "tri_nodes" in data else "hinge"
        builder._nodes = nodes  # the shell's nodes keep the file's numbers
        used = np.unique(faces)
        builder.add_shell(
            nodes[used], np.searchsorted(used, faces), 1e-3, placeholder, bending=bending, membrane="springs"
        )
    for force in forces:
        builder.add_force(force)
    for contact in contacts:
        builder.add_contact(contact)
    free = robot.free_dofs if clamped is None else _all_but(clamped, data, prefix)
    with mock.patch.object(robot, "free_dofs", free):
        model = builder.finalize()
    numbers = Correspondence(model, data, prefix)
    model.body.mass = tensor(get("massVec").reshape(-1)[numbers.dofs])
    if len(edges):
        _load_rods(model, get, len(edges))
    if len(faces):
        _load_shells(model, get)
    return model


def _directors(get, nodes, edges) -> np.ndarray | None:
    directors = get("a1_init")[: len(edges)]
    tangent = nodes[edges[:, 1]] - nodes[edges[:, 0]]
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    aside = np.abs((directors * tangent).sum(1)).max() > 1e-6  # one-step oracles give them at another shape
    return None if aside else directors


def _all_but(clamped: np.ndarray, data, prefix: str):
    """Return the builder's function for free dofs without the file's fixed ones (a clamp by nodes cannot say them)."""
    own = robot.free_dofs
    nodes, edges = len(data[prefix + "nodes0"]), data[prefix + "Edges"].astype(int)

    def free(body, clamps, planar):
        fixed = np.zeros(3 * nodes + max(len(data[prefix + "a1_init"]), 0) + len(edges), dtype=bool)
        fixed[clamped.astype(int)] = True
        place, _ = matched(body.framed_edges, edges)
        moving, slides = own(body, clamps, planar)
        return moving & ~np.concatenate([fixed[: 3 * nodes], fixed[3 * nodes + place]]), slides

    return free


def _load_rods(model: Model, get, count: int) -> None:
    stretch = model.term("stretch")
    assert np.array_equal(get("stretch_nodes")[:count], model.rod_edges)
    stretch.stencil.rest_length = tensor(get("stretch_refLen")[:count])
    stretch.energy.EA.data = tensor(get("stretch_stiff")[:count])
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


def _load_shells(model: Model, get) -> None:
    membrane = model.term("membrane")
    order, _ = matched(model.body.surface.edges, get("stretch_nodes").astype(int))
    membrane.stencil.rest_length = tensor(get("stretch_refLen"))[order]
    membrane.energy.membrane.data = tensor(get("stretch_stiff"))[order]
    if any(t.name == "hinge" for t in model.terms):
        hinge = model.term("hinge")
        order, signs = hinge_order(model, get("hinge_nodes"))
        hinge.energy.hinge.data = tensor(get("hinge_kb"))[order]
        hinge.natural_hinge_angle = tensor(get("hinge_thetaBar")[order] * signs)
    else:
        model.term("midedge").energy.stiffness.data = tensor(get("kb")).squeeze()


def hinge_order(model: Model, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each hinge of the model its index in the file, and -1 where the file counts its angle backwards.

    Turning the edge round changes the sign, and so does exchanging the opposite nodes.
    """
    found, edge_signs = matched(model.hinges[:, :2], theirs[:, :2].astype(int))
    exchanged = (model.hinges[:, 2] != theirs[found, 2].astype(int)) * 2 - 1
    return found, -edge_signs * exchanged


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
    numbers = Correspondence(model, data, "geo_")
    dofs = numbers.ours(data[q])
    state = model.frames.moved(model.initial_state(), dofs)
    director = state.director.clone()
    twisted = first_normal(model.body) - 3 * model.body.n_nodes  # mid-edge normals have no frames in the files
    if twisted:
        director[0, :twisted] = tensor(data["a1" + suffix])[numbers.edges[:twisted]]
        springs, _ = spring_order(model, data["geo_bt_nodes"])
        state = state.replace(reference_twist=tensor(data["refTwist" + suffix])[springs][None])
    return state.replace(director=director)
