"""Arrows of contact forces: which way they go, how long they are, and where they are shown."""

import dataclasses

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.view.runs import made_up, run_of, twisting
from torchdismech import InputError, Trajectory
from torchdismech.cli import app
from torchdismech.geometry.surface import find_surface
from torchdismech.view.arrows import LONGEST_ARROW, Arrows, ContactForces
from torchdismech.view.scenery import Scenery

ROWS, ROBOT = np.array([0, 1]), np.array([0])
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


def touching(forces: list[list[list[float]]], nodes: np.ndarray, edges) -> Trajectory:
    """Return a run of one robot, which stays where it is, that keeps forces (T, N, 3)."""
    given = torch.tensor(forces, dtype=torch.float64)[:, None]
    run = made_up(np.repeat(nodes[None], len(given), axis=0), edges)
    return dataclasses.replace(run, contact={"node_force": given})


def test_arrows_go_the_way_of_the_force():
    """Begin at the nodes and reach along the forces, the largest as far as is said; draw no small ones."""
    forces = [[[0.0, 3, 4], [1.0, 0, 0], [0.0, 0, 4e-3]], [[0.0, 0, 0], [0.0, 0, 0], [0.0, 0, 0]]]
    found = ContactForces(touching(forces, np.eye(3), [[0, 1], [1, 2]]))
    assert found.largest == 5.0 and found.nodes(ROWS, ROBOT).tolist() == [0, 1]
    arrows = Arrows(found, ROWS, ROBOT, size=2.0)
    assert arrows.count == 2 and arrows.said == "longest arrow 5 N"
    vertices, normals = (x.reshape(2, 2, -1, 3) for x in arrows.vertices(slice(0, 2), np.array([[0.0, 0, 1]])))
    places = np.eye(3)[:2] + [0, 0, 1]  # the robot is shown a metre higher
    ways = LONGEST_ARROW * 2.0 / 5 * np.array([[0, 3, 4], [1, 0, 0]])
    np.testing.assert_allclose(vertices[0, :, -1], places + ways, atol=1e-6)  # float32
    np.testing.assert_allclose(vertices[0, :, 0], places, atol=1e-6)
    assert np.ptp(vertices[1], axis=1).max() == 0  # without a force they are points
    surface = find_surface(arrows.faces[: len(arrows.faces) // 2])
    assert len(surface.hinges) == len(surface.edges)  # no edge has one side only
    outwards = ((vertices[0, 0] - vertices[0, 0].mean(0)) * normals[0, 0]).sum(-1)
    assert outwards[0] > 0 and outwards[-1] > 0  # the foot and the tip
    low, high = arrows.reach()
    np.testing.assert_allclose([low, high], [[0, 0, 0], [0.12, 0.36, 0.48]])


def test_a_run_shows_its_contact_forces(tmp_path):
    """Show the forces of a scene's floor and ball in movies, in pictures and in the command; keep them in the view."""
    path = run_of(tmp_path, SCENE)
    run = Trajectory.load(path)
    scenery = Scenery(run, [0], contact=True)
    assert scenery.arrows is not None and not scenery.remarks
    last = scenery.shown(len(scenery) - 1)
    assert (last.arrows[0] >= scenery.low - 0.01).all() and (last.arrows[0] <= scenery.high + 0.01).all()
    forces, rows = ContactForces(run), scenery.frames[-1:]
    nodes = forces.nodes(rows, ROBOT)
    force, place = (x[0, 0] for x in (forces.forces(rows, ROBOT, nodes), forces.places(rows, ROBOT, nodes)))
    assert 0 in nodes and 4 in nodes and (force[:, 2] > 0).all()  # on the ball and on the floor
    np.testing.assert_allclose(force.sum(0), sum(run.contact[f"force/{n}"][-1, 0] for n in ("floor", "obstacle0")))
    assert np.array_equal(place, run.positions[-1, 0, nodes])
    out = tmp_path / "run.gif"
    call = ["movie", str(path), "--out", str(out), "--contact", "--no-progress", "--size", "160x120"]
    assert CliRunner().invoke(app, call).exit_code == 0 and out.exists()


def test_arrows_are_red_in_pictures(tmp_path):
    """Draw more red with arrows than without."""
    pytest.importorskip("PIL")
    from torchdismech.view.movie import pictures

    run = Trajectory.load(run_of(tmp_path, SCENE))

    def red(contact: bool) -> int:
        scenery = Scenery(run, [0], contact=contact)
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
    from torchdismech.view.page import Page

    page = Page(Trajectory.load(run_of(tmp_path, SCENE)), port=18090)
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


def test_runs_in_which_nothing_touches_have_none():
    """Show runs that might touch something and do not, without arrows."""
    pytest.importorskip("PIL")
    from torchdismech.view.movie import pictures

    scenery = Scenery(touching([[[0.0, 0, 0]] * 3], np.eye(3), [[0, 1], [1, 2]]), [0], contact=True)
    assert scenery.arrows is not None and scenery.arrows.count == 0 and len(list(pictures(scenery, (64, 64)))) == 1


def test_runs_without_contact_are_refused():
    """Say that there is nothing to show, or that a file of before does not say where forces act."""
    run = twisting()[0]
    with pytest.raises(InputError, match="--contact: the run has no contact forces"):
        Scenery(run, [0], contact=True)
    before = dataclasses.replace(run, contact={"active": torch.zeros(len(run.time), 2)})
    with pytest.raises(InputError, match="of an earlier version"):
        Scenery(before, [0], contact=True)
