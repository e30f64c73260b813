"""docs/scene.md says what the program does."""

import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import trimesh
from pydantic import BaseModel

from torchdismech import rollout
from torchdismech.io.scene import load_scene
from torchdismech.io.scene.refusals import _tables
from torchdismech.io.schema import scene as schema
from torchdismech.io.schema.base import PER_ROBOT, is_marked

DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "scene.md"
FILES = {
    "arm.txt": (
        "*Nodes\n0,0,0\n0.1,0,0\n0.2,0,0\n0.3,0,0\n0.4,0.05,0\n0.4,-0.05,0\n0.5,0,0\n"
        "*Edges\n1,2\n2,3\n3,4\n*Triangles\n4,6,5\n5,6,7\n"
    ),
    "hinge.csv": "0, 0\n1, 0.1\n",
    "path.csv": "0, 0,0,0, 0.1,0,0\n",
    "kappa.csv": "0, 0,0\n1, 0.1,0.1\n",
    "twist.csv": "0, 0,0\n",
    "length.csv": "0, 0.1,0.1,0.1\n",
    "way.csv": "time, x, y, z\n0, 0,0,0\n1, 0,0,0.1\n",
    "x.csv": "0,0,0\n0.1,0,0\n0.2,0,0\n0.3,0,0.01\n0.4,0.05,0\n0.4,-0.05,0\n0.5,0,0\n",
    "v.csv": "0,0,0\n0,0,0\n0,0,0\n0,0,0\n0,0,0.1\n0,0,0.1\n0,0,0.1\n",
    "m.csv": "x, y, z\n1e3, 0, 0\n1e3, 0, 0\n0, 0, 1e3\n",
    "field.csv": "0, 0,0,0\n1, 0,0,1e-2\n",
    "field.py": "def field(time):\n    return (0.0, 0.0, 1e-2)\n",
    "target.csv": "0,0,0\n0.1,0,0\n0.2,0,0\n0.3,0,0.01\n0.4,0.05,0\n0.4,-0.05,0\n0.5,0,0\n",
    "reference.csv": "0, 0,0, 0,0, 0,0\n1, 0.1,0, 1,0, 0,0\n",
    "loop.py": "def made(model, dt):\n    return lambda state, control, model: control\n",
    "act.py": "def act(time, model, control):\n    return control\n",
}
SPHERE = """shape = "sphere"                 # or "plane", "box", "capsule", "cylinder", "mesh"
center = [0.0, 0.0, 0.3]         # m; of "sphere" and "box"
radius = 0.1                     # m; of "sphere", "capsule" and "cylinder"
"""
MOTION = """velocity = [0.0, 0.0, 0.1]       # m/s, of all nodes, or of those in nodes; clamped dofs are at rest
angular_velocity = [0.0, 0.0, 0.5] """
FIELD = "constant = [0.0, 0.0, 1e-2]"


@pytest.fixture
def example(tmp_path) -> str:
    """Return the text of the documented scene, with the files that it names beside it."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    trimesh.creation.icosphere(1, radius=0.1).apply_translation([0, 0, -0.3]).export(tmp_path / "rock.stl")
    found = re.search(r"```toml\n(.*?)```", DOCUMENTATION.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert found is not None
    return found[1]


# keys of numbers that cannot be drawn, in tables of which docs/scene.md says that all others can
NOT_DRAWN = {
    "environment": {"smoothing", "axis"},
    "floor": set(),
    "self_contact": {"rounding"},
    "contact": {"rounding"},
}
NOT_DRAWN |= {
    "obstacle": {"spacing", "scale", "rotation", "position"},
    "membrane": set(),
    "dissipation": set(),
    "spring": set(),
    "inertia": set(),
}


@pytest.mark.parametrize("name", NOT_DRAWN)
def test_numbers_that_cannot_be_drawn_are_named(name):
    """Find the keys of numbers that [batch.randomize] does not take; the page names them."""

    def not_drawn(table: type[BaseModel]) -> Iterator[str]:
        for key, field in table.model_fields.items():
            inner = list(_tables(field.annotation))
            for each in inner:
                yield from not_drawn(each)
            if not inner and "float" in str(field.annotation) and not is_marked(field, PER_ROBOT):
                yield key

    tables = _tables(schema.Document.model_fields[name].annotation)
    assert {key for table in tables for key in not_drawn(table)} == NOT_DRAWN[name]
    sentence = re.search(r"Numbers of `\[\[rod\]\]`.*?;", DOCUMENTATION.read_text(encoding="utf-8"), re.DOTALL)
    assert sentence is not None and all(key in sentence[0] for key in NOT_DRAWN[name])


def keys(table: type[BaseModel]) -> set[str]:
    """Return all keys of a table and of the tables in it."""

    def tables(annotation):
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation
        for part in typing.get_args(annotation):
            yield from tables(part)

    inner = [t for field in table.model_fields.values() for t in tables(field.annotation)]
    return set(table.model_fields).union(*(keys(t) for t in inner))


def test_documented_scene_runs(tmp_path, example):
    """Run two steps of the scene that shows every key."""
    path = tmp_path / "scene.toml"
    path.write_text(example)
    scene = load_scene(path, steps=2)
    setup = scene.build(allow_code=True)
    trajectory = rollout(
        setup.model, setup.state, setup.integrator, setup.steps, schedule=setup.schedule, controller=setup.controller
    )
    assert trajectory.batch == 3 and not trajectory.failed.any()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            'file = "arm.txt"',
            "nodes = [[0, 0, 0], [0.1, 0, 0], [0.2, 0, 0], [0.3, 0, 0], [0.4, 0.05, 0], [0.4, -0.05, 0], [0.5, 0, 0]]\n"
            "rod_edges = [[0, 1], [1, 2], [2, 3]]\ntriangles = [[3, 5, 4], [4, 5, 6]]",
        ),
        ('bending = "midedge"', 'bending = "hinge"'),
        ("velocity = [0.1, 0.0, 0.0]", "rotation = {axis = [0, 0, 1], center = [0, 0, 0], rate = 1.0}"),
        ('law = "quadratic", density = 1000.0', 'law = "linear"'),
        (
            'section = {shape = "circle", radius = 1e-3}',
            'section = {shape = "circle", radius = 1e-3}\nnodes = [0, 1, 2, 3]',
        ),
        ("velocity = [0.0, 0.0, -0.1]", 'path = "way.csv"'),
        (SPHERE, 'shape = "plane"\npoint = [0, 0, -1]\nnormal = [0, 0, 1]\n'),
        (SPHERE, 'shape = "box"\ncenter = [0, 0, 1]\nsize = [0.1, 0.1, 0.2]\nrotation = [0, 0, 1.57]\n'),
        (SPHERE, 'shape = "capsule"\nstart = [0, 0, 1]\nend = [0, 0, 2]\nradius = 0.1\n'),
        (SPHERE, 'shape = "cylinder"\nstart = [0, 0, 1]\nend = [0, 0, 2]\nradius = 0.1\n'),
        ("# spacing = 5e-3", "spacing = 5e-3"),
        ("density = 1000.0}", 'density = 1000.0, length = "current"}'),
        ("height = -0.5", "height = -0.5\nnodes = [3]"),
        ("magnetisation = [1e3, 0, 0]", 'magnetisation_file = "m.csv"'),
        (FIELD, 'rotating = {amplitude = 1e-2, frequency = 5.0, plane = "xz"}'),
        (FIELD, 'file = "field.csv"\nscale = 2.0'),
        (FIELD, 'python = "field.py:field"'),
        (FIELD, "dipole = {moment = [0, 0, 2e3], center = [0, 0, -5]}"),
        (FIELD, "gradient = {value = [0, 0, 1e-2], gradient = [[0, 0, 0], [0, -1, 0], [0, 0, 1]]}"),
        ("angular_velocity = [0.0, 0.0, 0.5]", 'positions_file = "x.csv"\nnodes = [4, 5]'),
        (MOTION, 'velocity_file = "v.csv"'),
    ],
    ids=[
        *(
            "inline geometry",
            "hinges",
            "rotation",
            "linear law",
            "rod by nodes",
            "path",
            "plane",
            "box",
            "capsule",
            "cylinder",
            "spacing",
        ),
        *(
            "current lengths",
            "floor for some",
            "magnetisation by edge",
            "rotating field",
            "field over time",
            "field by code",
            "small magnet",
            "field with a gradient",
            "places of nodes",
            "velocities of nodes",
        ),
    ],
)
def test_documented_alternatives_are_accepted(tmp_path, example, old, new):
    """Accept what the comments offer in place of the example's own keys."""
    assert old in example
    path = tmp_path / "scene.toml"
    path.write_text(example.replace(old, new))
    load_scene(path).build(allow_code=True)


def test_every_key_is_documented(example):
    """Find each key of the schema in the documented scene."""
    missing = {key for key in keys(schema.Document) if not re.search(rf"\b{key}\b", example)}
    assert not missing
