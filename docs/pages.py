"""The pages that are generated: tutorials from their scripts, the API from docstrings (keys: `keys.py`).

They are written to `docs/generated`, which git ignores. A public name without a docstring is refused.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from keys import config_keys, scene_keys

__all__ = ["ROOMS", "Room", "config_keys", "documented_names", "reference", "scene_keys", "write"]


@dataclass(frozen=True)
class Room:
    """A page of the API reference: what it is called, the modules whose public names it has, the guide to it."""

    title: str
    modules: tuple[str, ...]
    guide: str = ""


ROOMS = {
    "building": Room(
        "Building a robot",
        (
            "torchdismech.builder",
            "torchdismech.robot.materials",
            "torchdismech.geometry.curves",
            "torchdismech.geometry.meshes",
            "torchdismech.io.dismech",
            "torchdismech.io.meshes",
        ),
        "rods.md",
    ),
    "model": Room(
        "Model, state and control", ("torchdismech.model", "torchdismech.robot.state", "torchdismech.errors")
    ),
    "integrate": Room("Steps", ("torchdismech.integrate", "torchdismech.runs"), "speed.md"),
    "trajectory": Room("Trajectories", ("torchdismech.trajectory",), "scene.md"),
    "forces": Room("Forces", ("torchdismech.forces",), "gradients.md"),
    "actuation": Room("Tendons and chambers", ("torchdismech.actuation",), "tendons.md"),
    "elastic": Room("Elastic terms and energies", ("torchdismech.elastic",), "shells.md"),
    "contact": Room("Contact", ("torchdismech.contact",), "contact.md"),
    "magnetics": Room("Magnetised rods and shells", ("torchdismech.magnetics",), "magnetics.md"),
    "control": Room("Closed loops", ("torchdismech.control",), "control.md"),
    "trainable": Room("Trainable constants", ("torchdismech.trainable",), "gradients.md"),
    "vibration": Room("Vibrations", ("torchdismech.analysis.vibration",), "modes.md"),
    "following": Room(
        "Equilibrium paths", ("torchdismech.analysis.following", "torchdismech.analysis.path"), "modes.md"
    ),
    "rigid": Room("Chains of rigid elements", ("torchdismech.rigid",), "rigid_elements.md"),
    "constant_curvature": Room("Pneumatic arms", ("torchdismech.constant_curvature",), "pneumatic_arm.md"),
    "environments": Room(
        "Environments for learning",
        (
            "torchdismech.environments",
            "torchdismech.environments.gym",
            "torchdismech.environments.torchrl",
            "training.ppo",
        ),
        "environments.md",
    ),
    "view": Room(
        "Looking at runs",
        ("torchdismech.view", "torchdismech.view.page", "torchdismech.view.movie", "torchdismech.view.export"),
        "looking.md",
    ),
    "scenes": Room("Scenes from Python", ("torchdismech.io.scene",), "scene.md"),
    "testing": Room("Checks of your own terms", ("torchdismech.testing",), "extending.md"),
    "fits": Room(
        "Fits to recordings",
        (
            "training.fitting",
            "training.reports.evaluation",
            "training.system",
            "training.robots.systems",
            "training.optimization.loop",
            "training.splits",
            "training.loss",
            "training.reports.metrics",
            "training.optimization.certainty",
            "training.optimization.evidence",
            "training.optimization.residuals",
            "training.optimization.gauss_newton",
            "training.optimization.adam",
        ),
        "training.md",
    ),
    "recordings": Room("Recordings", ("training.data",), "training.md"),
    "fitted": Room(
        "What is fitted",
        (
            "training.robots.physics",
            "training.robots.rods",
            "training.robots.scenes",
            "training.robots.free",
            "training.robots.rod_models",
            "training.robots.rod_motion",
            "training.robots.trees",
            "training.robots.constants",
            "training.robots.drives",
            "training.robots.markers",
        ),
        "training.md",
    ),
    "networks": Room("Networks in the step", ("models", "models.edge_features", "models.mlp"), "extending.md"),
    "solvers": Room("Linear solvers", ("torchdismech.solve.linear", "torchdismech.sparse"), "speed.md"),
}

# Modules that import packages of the extra [rl], which need not be installed: what they say is read in their source,
# and Sphinx gets stand-ins for these packages (`conf.py`).
OF_AN_EXTRA = ("torchdismech.environments.gym", "torchdismech.environments.torchrl", "training.ppo")


def write(source: Path) -> None:
    """Write all generated pages below `source/generated`, and remove those of other versions."""
    folder = source / "generated"
    texts = {folder / name: text for name, text in _texts(source)}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # else a second build reads it again
            path.write_text(text, encoding="utf-8")
    for path in set(folder.rglob("*.md")) - texts.keys():
        path.unlink()


def _texts(source: Path) -> Iterator[tuple[str, str]]:
    for script in sorted((source / "tutorials").glob("*.py")):
        yield f"tutorials/{script.stem}.md", tutorial(script)
    yield "scene_keys.md", scene_keys()
    yield "config_keys.md", config_keys()
    yield from reference()


def reference() -> Iterator[tuple[str, str]]:
    """Yield names and texts of the pages of the API reference."""
    yield "reference/index.md", _names_of_the_package()
    for page, room in ROOMS.items():
        yield f"reference/{page}.md", _reference(room)


def tutorial(script: Path) -> str:
    """Return the page of a tutorial: its prose as it is, its code in blocks."""
    import jupytext  # here: what is said of names is checked without it, too

    text = jupytext.writes(jupytext.read(script, fmt="py:percent"), fmt="md")
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    ending = f"*This page is `docs/tutorials/{script.name}`: it runs as it is, and opens as a notebook by jupytext.*"
    return f"{body}\n{ending}\n"


# ---- the API -----------------------------------------------------------------------------------------------------


def documented_names(module: types.ModuleType) -> list[str]:
    """Return the public names of a module; refuse those that nothing is said about."""
    names = list(module.__all__)
    _refuse_silent(module.__name__, [name for name in names if not _said(getattr(module, name))])
    return names


def names_in_source(path: Path) -> list[str]:
    """Return the public names of a module that is not imported; refuse those that nothing is said about."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lists = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    names = list(ast.literal_eval(lists[0]))
    told = {
        node.name: ast.get_docstring(node) for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    _refuse_silent(path.name, [name for name in names if not told.get(name)])
    return names


def _refuse_silent(module: str, silent: list[str]) -> None:
    if silent:
        raise ValueError(f"{module}: without a docstring: {', '.join(silent)}: write one, or leave it out of __all__")


def _said(thing: object) -> bool:
    """Whether a class, function or module has a docstring of its own; of data it is a comment in the source."""
    if typing.get_origin(thing) is not None:
        return True
    if isinstance(thing, type) or callable(thing) or isinstance(thing, types.ModuleType):
        return bool(inspect.getdoc(thing))
    return True


def _reference(room: Room) -> str:
    guide = f"The guide to it: [](../../{room.guide}).\n\n" if room.guide else ""  # an empty text becomes the title
    return f"# {room.title}\n\n{guide}" + "\n".join(_module_text(name, room) for name in room.modules)


def _module_text(name: str, room: Room) -> str:
    _members(name)
    heading = f"## {name}\n\n" if len(room.modules) > 1 else ""
    return f"{heading}```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n   :show-inheritance:\n```\n"


def _names_of_the_package() -> str:
    """Return the page that says where each name of `import torchdismech` is documented."""
    public = importlib.import_module("torchdismech.public")
    homes = {name: page for page, room in ROOMS.items() for module in room.modules for name in _members(module)}
    rows = []
    for name in documented_names(public):
        thing = getattr(public, name)
        page = _room_of(thing) if isinstance(thing, types.ModuleType) else homes.get(name)
        if page is None:
            raise ValueError(f"torchdismech.{name} is on no page: add its module to ROOMS")
        said = (inspect.getdoc(thing) or "").split("\n")[0]
        rows.append(f"| [`{name}`]({page}.md) | {said} |")
    table = "\n".join(["| name | what it is |", "|---|---|", *rows])
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *ROOMS, "```"])
    return (
        "# API reference\n\nPublic tensors have the batch first; units are SI; float64 unless asked otherwise. "
        "These are the names of `import torchdismech`; each room has more, as have `training` and `models` beside it."
        f"\n\n{table}\n\n{toctree}\n"
    )


def _members(module: str) -> list[str]:
    """Return the public names of a module of the reference, all of which are documented."""
    if module not in OF_AN_EXTRA:
        return documented_names(importlib.import_module(module))
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return names_in_source(Path(spec.origin))


def _room_of(module: types.ModuleType) -> str | None:
    return next((page for page, room in ROOMS.items() if module.__name__ in room.modules), None)
