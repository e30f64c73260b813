"""Arrows of contact forces: where they begin, which way they go, how long they are, and where they are shown."""

import dataclasses

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.view.runs import made_up, run_of, twisting
from torchdismech import InputError, Trajectory
from torchdismech.cli import app
from torchdismech.contact import HalfSpace, Obstacle, Penalty, Sphere
from torchdismech.geometry.surface import find_surface
from torchdismech.view.arrows import LONGEST, Arrows, ContactForces
from torchdismech.view.scenery import Scenery

ROW = np.array([0])
# a rod falls on a floor and on a ball below its left end
SCENE = """
[robot]
nodes = [[0, 0, 0.07], [0.05, 0, 0.07], [0.1, 0, 0.07], [0.15, 0, 0.07], [0.2, 0, 0.07]]
rod_edges = [[0, 1], [1, 2], [2, 3], [3, 4]]
[rod]
section = {shape = "circle", radius = 5e-3}
youngs = 1e6
density = 1000.0
[environment]
gravity = [0, 0, -9.81]
[floor]
stiffness = 50.0
[[obstacle]]
shape = "sphere"
center = [0, 0, 0.03]
radius = 0.03
stiffness = 50.0
[simulation]
dt = 0.005
duration = 0.2
[output]
every = 4
"""


def touching(forces: dict[str, list[list[float]]], nodes: np.ndarray, edges) -> Trajectory:
    """Return a run of one frame and one robot that keeps forces by name."""
    run = made_up(nodes[None], edges)
    given = {f"force/{name}": torch.tensor(force, dtype=torch.float64)[None] for name, force in forces.items()}
    return dataclasses.replace(run, contact=given)


def test_arrows_begin_where_robots_touch():
    """Begin at the nearest node, between two that are equally near, and in the middle of parts."""
    nodes = np.array([[0.0, 0, 0], [0.1, 0, 0.5], [0.2, 0, 0], [0.0, 1, 0.4], [0.2, 1, 0.8]])
    forces = {"floor": [[0.0, 0, 2]], "ball": [[1.0, 0, 0]], "part1": [[0.0, 1, 0]], "wall": [[0.0, 0, 1]]}
    run = touching(forces, nodes, [[0, 1], [1, 2], [3, 4]])
    floor = Obstacle(HalfSpace((0, 0, -0.1), (0, 0, 1)), Penalty(1.0, 1e-3), name="floor")
    ball = Obstacle(Sphere((0.2, 1, 1), 0.1), Penalty(1.0, 1e-3), name="ball")
    found = ContactForces(run, [floor, ball])
    assert found.names == list(forces) and found.unknown == ["wall"] and found.largest == 2.0
    places = found.places(ROW, ROW)[0, 0]
    # nodes that are not the nearest count by exp(-distance / (0.02 of the size of 1 m)): exp(-20) and less
    expected = [[0.1, 0, 0], [0.2, 1, 0.8], [0.1, 1, 0.6], nodes.mean(0)]
    np.testing.assert_allclose(places, expected, atol=1e-6)


def test_arrows_go_the_way_of_the_force():
    """Reach along the forces, the largest as far as is said, with a closed surface; draw no small ones."""
    forces = {"a": [[0.0, 3, 4]], "b": [[1.0, 0, 0]], "c": [[0.0, 0, 1e-3]]}
    found = ContactForces(touching(forces, np.eye(3), [[0, 1], [1, 2]]), [])
    arrows = Arrows(found, ROW, ROW, size=2.0)
    vertices, normals = (x[0].reshape(3, -1, 3) for x in arrows.vertices(slice(0, 1), np.array([[0.0, 0, 1]])))
    place = np.array([1 / 3, 1 / 3, 4 / 3])  # the robot's middle, a metre higher
    tips = vertices[:, -1] - place
    np.testing.assert_allclose(tips[:2], LONGEST * 2.0 / 5 * np.array([[0, 3, 4], [1, 0, 0]]), atol=1e-6)  # float32
    assert np.ptp(vertices[2], axis=0).max() == 0 and arrows.said == "longest arrow 5 N"
    surface = find_surface(arrows.faces[: len(arrows.faces) // 3])
    assert len(surface.hinges) == len(surface.edges)  # no edge has one side only
    outwards = ((vertices[0] - vertices[0].mean(0)) * normals[0]).sum(-1)
    assert outwards[0] > 0 and outwards[-1] > 0  # the foot and the tip
    low, high = arrows.reach()
    np.testing.assert_allclose([low, high], [[0, 0, 0], [0.12, 0.36, 0.48]])


def test_a_run_shows_its_contact_forces(tmp_path):
    """Show the forces of a scene's floor and ball in movies, in pictures and in the command; keep them in the view."""
    path = run_of(tmp_path, SCENE)
    run = Trajectory.load(path)
    scenery = Scenery(run, [0], folder=tmp_path, contact=True)
    assert scenery.arrows is not None and not scenery.remarks
    last = scenery.shown(len(scenery) - 1)
    assert (last.arrows[0] >= scenery.low - 0.01).all() and (last.arrows[0] <= scenery.high + 0.01).all()
    forces = ContactForces(run, [placed.surface._obstacle for placed in scenery.obstacles])
    rows = scenery.frames[-1:]
    force = dict(zip(forces.names, forces.forces(rows, ROW)[0, 0], strict=True))
    place = dict(zip(forces.names, forces.places(rows, ROW)[0, 0], strict=True))
    assert force["floor"][2] > 0 and abs(place["floor"][2]) < 0.01 and place["floor"][0] > 0.1
    assert force["obstacle0"][2] > 0 and place["obstacle0"][0] < 0.1 and place["obstacle0"][2] > 0.03
    out = tmp_path / "run.gif"
    call = ["movie", str(path), "--out", str(out), "--contact", "--no-progress", "--size", "160x120"]
    assert CliRunner().invoke(app, call).exit_code == 0 and out.exists()


def test_arrows_are_red_in_pictures(tmp_path):
    """Draw more red with arrows than without."""
    pytest.importorskip("PIL")
    from torchdismech.view.movie import pictures

    run = Trajectory.load(run_of(tmp_path, SCENE))

    def red(contact: bool) -> int:
        scenery = Scenery(run, [0], folder=tmp_path, contact=contact)
        picture = list(pictures(scenery, (240, 180)))[-2].astype(int)[50:]  # below the words
        return int(((picture[..., 0] > 120) & (picture[..., 1:] < 90).all(-1)).sum())

    assert red(False) == 0 and red(True) > 5


def test_figures_have_arrows(tmp_path):
    """Draw them in the figure of a run that has contacts, flat and in space, and none in one without."""
    pytest.importorskip("matplotlib")
    from torchdismech.view import draw_trajectory

    run = Trajectory.load(run_of(tmp_path, SCENE))

    def said(run: Trajectory) -> list[str]:
        return draw_trajectory(run).axes[0].get_legend_handles_labels()[1]

    assert any(label.startswith("contact forces, up to") for label in said(run))
    turned = dataclasses.replace(run, positions=run.positions + 0.05 * run.positions[..., :1] * torch.rand(1, 1, 5, 3))
    assert any(label.startswith("contact forces, up to") for label in said(turned))
    assert not any(label.startswith("contact") for label in said(twisting()[0]))


def test_the_page_shows_them(tmp_path):
    """Turn arrows on and off."""
    pytest.importorskip("viser")
    from torchdismech.view.page import Page, Wanted

    page = Page(Trajectory.load(run_of(tmp_path, SCENE)), Wanted(folder=tmp_path), port=18090)
    try:
        assert page._stage._arrows is None
        page._contact.value, page.frame.value = True, 8
        page.tick()
        assert page._stage._arrows is not None and "longest arrow" in page._legend.content
        page._contact.value = False
        page.tick()
        assert page._stage._arrows is None and "longest arrow" not in page._legend.content
    finally:
        page.close()


def test_runs_without_contact_are_refused():
    """Say that there is nothing to show."""
    with pytest.raises(InputError, match="--contact: the run has no contact forces"):
        Scenery(twisting()[0], [0], contact=True)
