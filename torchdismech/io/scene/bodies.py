"""Rods and shells of a scene: which table each edge or triangle belongs to, and what it adds to the robot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchdismech.builder import RobotBuilder
from torchdismech.builder.nodes import nodes_in_box
from torchdismech.builder.shells import USUAL_MEMBRANE
from torchdismech.elastic import Dahl, Inelastic, LinearElastic, Maxwell, MooneyRivlin, NeoHookean, Plastic
from torchdismech.io.scene.files import reading
from torchdismech.io.scene.refusals import Key, SceneError, naming
from torchdismech.io.schema import robot as schema_robot
from torchdismech.io.schema.robot import Box
from torchdismech.io.tables import read_vectors
from torchdismech.robot.materials import Circle, Material, Rectangle
from torchdismech.values import tensor_of

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["add_dissipation", "add_inelastic", "add_rods", "add_shells", "selected", "stiffen_springs", "table_of_each"]

# by elastic term: the keys of [dissipation] and [[inelastic]] for its strains, and the tables that a robot with it has
STIFFNESSES = {
    "stretch": (("EA",), "rod"),
    "bend_twist": (("EI1", "EI2", "GJ"), "rod"),
    "membrane": (("membrane",), "shell"),
    "hinge": (("bending",), "shell"),
}


def add_rods(scene: Scene, builder: RobotBuilder, table_of: np.ndarray) -> None:
    """Add the rod edges in the order of the file, with one call for each run of edges that share a [[rod]] table.

    `whole` tells the builder that the calls for one table count as one.
    """
    nodes, edges = scene.geometry.nodes, scene.geometry.rod_edges
    directors, start = _directors(scene, table_of), 0
    for k, run in _runs(edges, table_of):
        used, inverse = np.unique(run, return_inverse=True)
        rod = scene.values.rod[k]
        with naming(scene.path, ("rod", k)):
            builder.add_rods(
                nodes[used],
                inverse.reshape(-1, 2),
                _section(rod.section),
                _material(rod),
                rod.natural,
                _given(rod.stiffness),
                directors=None if rod.directors_file is None else directors[start : start + len(run)],
                contact_radius=rod.contact_radius,
                name=rod.name,
                whole=("rod", k),
            )
        start += len(run)


def _directors(scene: Scene, table_of: np.ndarray) -> np.ndarray:
    """Return the first directors (E, 3) that directors_file gives the rod edges, zero where a table has none."""
    directors = np.zeros((len(table_of), 3))
    for k, rod in enumerate(scene.document.rod):
        if rod.directors_file is not None:
            edges, key = np.flatnonzero(table_of == k), ("rod", k, "directors_file")
            with reading(scene.path, key, rod.directors_file) as path:
                directors[edges] = read_vectors(path, len(edges), "rod edge of the table").numpy()
    return directors


def add_shells(scene: Scene, builder: RobotBuilder, table_of: np.ndarray) -> None:
    """Add the triangles in the order of the file, with one call for each run of triangles that share a [[shell]] table.

    [membrane], if there is one, replaces the energy of all of them.
    """
    nodes = scene.geometry.nodes
    triangles = scene.geometry.triangles
    for k, run in _runs(triangles, table_of):
        used, inverse = np.unique(run, return_inverse=True)
        shell = scene.values.shell[k]
        faces = inverse.reshape(-1, 3)
        stiffness = _given(shell.stiffness)
        if shell.youngs is None:  # beside [membrane], which takes the place of this stiffness, too
            stiffness.setdefault("membrane", 1.0)
        kinds = (shell.bending, shell.natural, stiffness, shell.membrane, shell.name)
        with naming(scene.path, ("shell", k)):
            builder.add_shell(nodes[used], faces, shell.thickness, _material(shell), *kinds)
    if scene.values.membrane is not None:
        _replace_membrane(scene, builder, scene.values.membrane)


def _membrane(shell: schema_robot.Shell) -> str:
    """Return the membrane model of a [[shell]] table, "springs" or "continuum"; its default depends on `bending`."""
    return USUAL_MEMBRANE[shell.bending] if shell.membrane is None else shell.membrane


def _replace_membrane(scene: Scene, builder: RobotBuilder, table: Any) -> None:
    """Replace the membrane energy of all shells by that of [membrane]; refuse this unless all are of a continuum."""
    kinds = {_membrane(shell) for shell in scene.document.shell}
    if kinds != {"continuum"}:
        problem = 'stretches shells with membrane = "continuum"; ' + (
            "there are springs" if kinds else "there are none"
        )
        raise SceneError(scene.path, "membrane", problem)
    energy = NeoHookean(table.shear) if table.law == "neo_hookean" else MooneyRivlin(table.c1, table.c2)
    builder.replace_energy("membrane", energy)


def stiffen_springs(scene: Scene, builder: RobotBuilder) -> None:
    """Give single springs the stiffnesses of their [[spring]] tables."""
    for k, spring in enumerate(scene.values.spring):
        with naming(scene.path, ("spring", k)):
            builder.set_spring_stiffness(spring.nodes, **_given(spring.stiffness))


def add_dissipation(scene: Scene, builder: RobotBuilder) -> None:
    """Add the dissipation of [dissipation] to the elastic terms of all rods and shells."""
    table = scene.values.dissipation
    given = {} if table is None else _given(table)
    for term, values in _by_term(scene, ("dissipation",), given, "relaxation_time of [shell]").items():
        numbers = {f"viscous_{name}": tensor_of(value, torch.float64) for name, value in values.items()}
        with naming(scene.path, ("dissipation",)):
            builder.add_dissipation(term, LinearElastic(numbers))


def add_inelastic(scene: Scene, builder: RobotBuilder) -> None:
    """Add the laws of the [[inelastic]] tables (hysteresis, plasticity, relaxation) to the elastic terms."""
    for k, table in enumerate(scene.values.inelastic):
        key = ("inelastic", k)
        stiffnesses = _by_term(scene, key, _given(table), "what builder.add_inelastic takes in Python")
        if len(stiffnesses) != 1:
            names = ", ".join(name for names, _ in STIFFNESSES.values() for name in names)
            problem = (
                f"expected stiffnesses of one kind of strain, from {names}; got {' and '.join(stiffnesses) or 'none'}"
            )
            raise SceneError(scene.path, key, problem)
        (term, stiffness), *_ = stiffnesses.items()
        with naming(scene.path, key):
            builder.add_inelastic(term, _law(table, stiffness), table.name)


def _law(table: Any, stiffness: Mapping[str, Any]) -> Inelastic:
    """Return the law of a table [[inelastic]]; in a plastic one the two bending strains yield together."""
    if table.law == "maxwell":
        return Maxwell(stiffness, table.relaxation_time)
    if table.law == "dahl":
        return Dahl(stiffness, table.limit)
    return Plastic(stiffness, table.limit, together=[name for name in ("EI1", "EI2") if name in stiffness])


def _by_term(scene: Scene, key: Key, given: Mapping[str, Any], instead: str) -> dict[str, dict[str, Any]]:
    """Return the numbers of [dissipation] or [[inelastic]] by elastic term and key; keys of a term not given are 0.

    Refused are keys for strains that the robot does not have.

    Parameters
    ----------
    given : the keys that the table has, with their values.
    instead : what messages recommend where shells have other membrane or bending strains.
    """
    shells, by_term = scene.document.shell, {}
    if "membrane" in given and any(_membrane(shell) == "continuum" for shell in shells):
        problem = f'is of shells that stretch as springs; with membrane = "continuum" take {instead}'
        raise SceneError(scene.path, (*key, "membrane"), problem)
    if "bending" in given and any(shell.bending == "midedge" for shell in shells):
        raise SceneError(scene.path, (*key, "bending"), f'is of hinges; with bending = "midedge" take {instead}')
    for term, (names, kind) in STIFFNESSES.items():
        present = [name for name in names if name in given]
        if present and not getattr(scene.document, kind):
            raise SceneError(scene.path, (*key, present[0]), f"acts on a {kind}, and the robot has none")
        if present:
            by_term[term] = {name: given.get(name, 0.0) for name in names}
    return by_term


def _runs(elements: np.ndarray, table_of: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (table, elements) for each run of consecutive elements that share a table."""
    starts = np.flatnonzero(np.diff(table_of, prepend=-1))
    for start, stop in zip(starts, [*starts, len(elements)][1:], strict=True):
        yield int(table_of[start]), elements[start:stop]


def table_of_each(scene: Scene, kind: str, elements: np.ndarray) -> np.ndarray:
    """Return the number of the [[rod]] or [[shell]] table of each edge (E,) or triangle (F,), exactly one for each."""
    name = {"rod": "rod edge", "shell": "triangle"}[kind]
    table_of = np.full(len(elements), -1)
    for k, table in enumerate(getattr(scene.document, kind)):
        inside: np.ndarray = np.ones(len(elements), dtype=bool)
        if table.nodes is not None or table.box is not None:
            ends = np.isin(elements, selected(scene, (kind, k), table.nodes, table.box))
            inside = np.asarray(ends.all(axis=1))
        if not inside.any():
            problem = (
                f"no {name} has all its nodes in this table's selection" if len(elements) else f"there is no {name}"
            )
            raise SceneError(scene.path, (kind, k), problem)
        both = np.flatnonzero(inside & (table_of >= 0))
        if len(both):
            other = table_of[both[0]]
            problem = f"{name} {both[0]} belongs to {kind}.{other} already: the selections must not overlap"
            raise SceneError(scene.path, (kind, k), problem)
        table_of[inside] = k
    if (table_of < 0).any():
        missing = int(np.flatnonzero(table_of < 0)[0])
        nodes = elements[missing].tolist()
        raise SceneError(scene.path, kind, f"{name} {missing} (nodes {nodes}) belongs to no [[{kind}]] table")
    return table_of


def selected(scene: Scene, key: Key, nodes: Sequence[int] | None, box: Box | None) -> np.ndarray:
    """Return the indices of the nodes that a table selects by `nodes` or `box`; refuse an empty box."""
    if box is None:
        return np.array(nodes, dtype=np.int64)
    x = scene.geometry.nodes
    inside = nodes_in_box(x, np.array(box.min), np.array(box.max))
    if not len(inside):
        low, high = x.min(axis=0).tolist(), x.max(axis=0).tolist()
        raise SceneError(scene.path, (*key, "box"), f"no node is inside; the robot spans {low} to {high}")
    return inside


def _section(table: Any) -> Circle | Rectangle:
    """Return the section of a [[rod]] table."""
    round = isinstance(table, schema_robot.Circle)
    return Circle(table.radius) if round else Rectangle(table.width, table.height)


def _material(table: Any) -> Material:
    """Return the material of a [[rod]] or [[shell]] table."""
    # without youngs all stiffnesses that act are given, and none of them is derived from this 1.0
    youngs = 1.0 if table.youngs is None else table.youngs
    return Material(youngs, table.density, table.poisson, table.relaxation_time)


def _given(table: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the keys of a table that are given, with their values."""
    return {name: value for name, value in table if value is not None}
