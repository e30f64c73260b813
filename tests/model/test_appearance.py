"""What runs keep of how robots and obstacles look: from models and scenes alike, in memory and in files."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from tests.view.runs import run_of
from torchdismech import (
    Circle,
    ImplicitEuler,
    InputError,
    Material,
    Rectangle,
    RobotBuilder,
    Trajectory,
    meshes,
    rollout,
)
from torchdismech.contact import Box, Capsule, Cylinder, HalfSpace, Mesh, Obstacle, Path, Penalty, Sphere
from torchdismech.model.appearance import KEY, Appearance
from torchdismech.view.scenery import Scenery

CORNERS = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]) + [0, 0, 2]
FACES = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
RADII = torch.tensor([[3e-3], [4e-3], [5e-3]], dtype=torch.float64)
UP = torch.tensor([[0.0, 0, 1], [0, 0, 2], [0, 0, 3]], dtype=torch.float64)


class Wall(HalfSpace):
    """A shape of the user's own."""


def things(rows: slice = slice(None)) -> list[Obstacle]:
    """Return one obstacle of each shape, some of them others for each robot."""
    shapes = {
        "floor": HalfSpace((0, 0, -1), UP[rows]),
        "ball": Sphere((0, 0, 3), 10 * RADII[rows]),
        "pill": Capsule((0, 1, 3), (0, 2, 3), 0.1),
        "drum": Cylinder((0, 3, 3), (0, 4, 3), 0.1),
        "case": Box((0, 5, 3), (0.1, 0.2, 0.3), (0, 0, 0.5)),
        "tent": Mesh(CORNERS, FACES),
    }
    paths = {"ball": Path.uniform(0.1 * UP[rows], 2.0), "pill": Path.uniform((1.0, 0, 0), 2.0)}
    return [Obstacle(shape, Penalty(1.0, 1e-3), path=paths.get(name), name=name) for name, shape in shapes.items()]


def built(rows: slice = slice(None), obstacles: list[Obstacle] | None = None):
    """Return robots of a round rod, one of a rectangular section and a shell."""
    builder, material = RobotBuilder(), Material(1e6, 1000.0)
    builder.add_rod(np.linspace([0, 0, 0], [0.1, 0, 0], 3), Circle(RADII[rows]), material, contact_radius=1e-3)
    builder.add_rod(np.linspace([0, 1, 0], [0.1, 1, 0], 2), Rectangle(width=2e-3, height=8e-3), material)
    sheet = meshes.rectangle(0.1, 0.1, 0.05)
    builder.add_shell(sheet.nodes + [0, 2, 0], sheet.triangles, 1e-3, material)
    for obstacle in things(rows) if obstacles is None else obstacles:
        builder.add_contact(obstacle)
    return builder.finalize()


def seen(appearance: Appearance) -> dict:
    """Return it as plain numbers."""
    return json.loads(appearance.text())


def test_runs_from_python_keep_it(tmp_path):
    """Keep sections, not radii of contact, and obstacles of all shapes with their paths; show them from the file."""
    model = built()
    run = rollout(model, model.initial_state(3), ImplicitEuler(1e-3), 2)
    run.save(tmp_path / "run.h5")
    read = Trajectory.load(tmp_path / "run.h5").appearance()
    assert seen(read) == seen(run.appearance()) == seen(model.appearance())
    assert read.sections.height.tolist() == [[2 * r, 2 * r, 8e-3] for r in RADII.flatten().tolist()]
    assert read.sections.width[1].tolist() == [8e-3, 8e-3, 2e-3] and read.sections.round.tolist() == [True, True, False]
    for thing, obstacle in zip(read.things, model.obstacles, strict=True):
        assert thing.name == obstacle.name and type(thing.shape) is type(obstacle.shape)
        points = torch.randn(3, 20, 3, dtype=torch.float64)
        assert torch.equal(thing.shape.distance(points), obstacle.shape.distance(points))
        assert (thing.path is None) == (obstacle.path is None)
        if thing.path is not None:
            time = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
            assert torch.equal(thing.path.displacement(time), obstacle.path.displacement(time))
    scenery = Scenery(Trajectory.load(tmp_path / "run.h5"), [0, 2])
    assert not scenery.remarks and len(scenery.obstacles) == 6
    assert scenery.half[1].tolist() == [[5e-3, 5e-3], [5e-3, 5e-3], [4e-3, 1e-3]]


def test_scenes_keep_it_in_the_same_way(tmp_path):
    """Read the same from the file of a scene and from the model that the scene builds."""
    run = Trajectory.load(run_of(tmp_path))
    builder, material = RobotBuilder(), Material(1e6, 1000.0)
    builder.add_rods([[0, 0, 0], [1, 0, 0], [2, 0, 0]], [[0, 1], [1, 2]], Rectangle(width=4e-3, height=2e-2), material)
    radius = torch.tensor([[5e-3], [6e-3], [7e-3]], dtype=torch.float64)
    builder.add_rods([[2, 0, 0], [3, 0, 0]], [[0, 1]], Circle(radius), material)
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(1.0, 1e-3), name="floor"))
    ball = Sphere((0.4, 0, 0.2), 0.03)
    builder.add_contact(Obstacle(ball, Penalty(1.0, 1e-3), path=Path.uniform((0.1, 0, 0), 2.0**100), name="obstacle0"))
    model = builder.finalize()
    assert seen(run.appearance()) == seen(model.appearance())


def test_parts_of_a_batch_are_joined():
    """Give what processes of one and of two robots have as one, the same as of all three."""
    parts = [built(rows).appearance() for rows in (slice(0, 1), slice(1, 3))]
    assert seen(Appearance.joined(parts)) == seen(built().appearance())


def test_shapes_of_ones_own_are_named():
    """Keep the name of a shape that nobody else knows, and say that it is not shown."""
    model = built(slice(0, 1), [Obstacle(Wall((0, 0, -1), (0, 0, 1)), Penalty(1.0, 1e-3), name="north")])
    run = rollout(model, model.initial_state(1), ImplicitEuler(1e-3), 1)
    scenery = Scenery(run, [0])
    assert not scenery.obstacles and scenery.remarks == ["not shown: north: Wall is a shape of its own"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda given: "{",
        lambda given: "[]",
        lambda given: json.dumps(given | {"sections": given["sections"] | {"height": [1.0]}}),
        lambda given: json.dumps(given | {"sections": given["sections"] | {"width": [[0.0, 1.0, 1.0]]}}),
        lambda given: json.dumps(given | {"things": [given["things"][1] | {"name": 3}]}),
        lambda given: json.dumps(given | {"things": [given["things"][1] | {"shape": "Obstacle"}]}),
        lambda given: json.dumps(given | {"things": [given["things"][1] | {"sizes": {"radius": 1.0}}]}),
        lambda given: json.dumps(
            given | {"things": [given["things"][1] | {"sizes": {"center": [0, 0, 0], "radius": -1}}]}
        ),
        lambda given: json.dumps(given | {"things": [given["things"][1] | {"path": {"times": [1]}}]}),
    ],
)
def test_damaged_texts_are_refused(damage):
    """Refuse what is not what was written, in one sentence."""
    with pytest.raises(InputError, match=f"{KEY}.*damaged|Sphere"):
        Appearance.read(damage(seen(built().appearance())))


def test_sections_of_other_robots_are_refused():
    """Say that sections and robots of a run do not fit, and what to do; show it then."""
    model = built()
    run = rollout(model, model.initial_state(3), ImplicitEuler(1e-3), 1)
    kept = {name: getattr(run, name)[:, :2] for name in ("positions", "velocities", "twist")}
    two = dataclasses.replace(run, state=run.state.rows(slice(0, 2)), **kept)
    with pytest.raises(InputError, match="2 robots of 3 rod edges, and sections of 3 of 3: give --radius"):
        Scenery(two, [0])
    assert Scenery(two, [0], radius=1e-3).half.shape == (1, 3, 2)
