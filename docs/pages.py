"""The pages that are generated: tutorials from their scripts, the API from docstrings (scene keys: `scene_keys.py`).

They are written to `docs/generated`, which git ignores. A public name without a docstring is refused.
"""

from __future__ import annotations

import importlib
import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scene_keys import scene_keys

__all__ = ["ROOMS", "Room", "documented_names", "reference", "scene_keys", "write"]


@dataclass(frozen=True)
class Room:
    """A page of the API reference: what it is called, the modules whose public names it has, the guide to it."""

    title: str
    modules: tuple[str, ...]
    guide: str = ""


ROOMS = {
    "building": Room(
        "Building a robot",
        ("builder", "materials", "geometry.curves", "geometry.meshes", "io.dismech", "io.meshes"),
        "rods.md",
    ),
    "model": Room("Model, state and control", ("model", "state", "errors")),
    "integrate": Room("Steps", ("integrate", "rollout"), "speed.md"),
    "trajectory": Room("Trajectories", ("trajectory",), "scene.md"),
    "forces": Room("Forces", ("forces",), "gradients.md"),
    "actuation": Room("Tendons and chambers", ("actuation",), "tendons.md"),
    "elastic": Room("Elastic terms and energies", ("elastic",), "shells.md"),
    "contact": Room("Contact", ("contact",), "contact.md"),
    "magnetics": Room("Magnetised rods and shells", ("magnetics",), "magnetics.md"),
    "control": Room("Closed loops", ("control",), "control.md"),
    "trainable": Room("Trainable constants", ("trainable",), "gradients.md"),
    "vibration": Room("Vibrations", ("vibration",), "modes.md"),
    "rigid": Room("Chains of rigid elements", ("rigid",), "rigid_elements.md"),
    "constant_curvature": Room("Pneumatic arms", ("constant_curvature",), "pneumatic_arm.md"),
    "environments": Room("Environments for learning", ("environments",), "environments.md"),
    "view": Room("Looking at runs", ("view", "view.page", "view.movie", "view.export"), "looking.md"),
    "scenes": Room("Scenes from Python", ("io.scene",), "scene.md"),
    "testing": Room("Checks of your own terms", ("testing",), "extending.md"),
    "solvers": Room("Linear solvers", ("solve.linear", "sparse"), "speed.md"),
}


def write(source: Path) -> None:
    """Write all generated pages below `source/generated`."""
    folder = source / "generated"
    for name, text in _texts(source):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # else a second build reads it again
            path.write_text(text, encoding="utf-8")


def _texts(source: Path) -> Iterator[tuple[str, str]]:
    for script in sorted((source / "tutorials").glob("*.py")):
        yield f"tutorials/{script.stem}.md", tutorial(script)
    yield "scene_keys.md", scene_keys()
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
    silent = [name for name in names if not _said(getattr(module, name))]
    if silent:
        raise ValueError(
            f"{module.__name__}: without a docstring: {', '.join(silent)}: write one, or leave it out of __all__"
        )
    return names


def _said(thing: object) -> bool:
    """Whether a class, function or module has a docstring of its own; of data it is the comment in the source."""
    if isinstance(thing, type) or callable(thing) or isinstance(thing, types.ModuleType):
        return bool(inspect.getdoc(thing))
    return True


def _reference(room: Room) -> str:
    guide = f"The guide to it: [](../../{room.guide}).\n\n" if room.guide else ""  # an empty text becomes the title
    return f"# {room.title}\n\n{guide}" + "\n".join(_module_text(f"torchdismech.{name}", room) for name in room.modules)


def _module_text(name: str, room: Room) -> str:
    documented_names(importlib.import_module(name))
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
        f"These are the names of `import torchdismech`; each room has more.\n\n{table}\n\n{toctree}\n"
    )


def _members(module: str) -> list[str]:
    return list(importlib.import_module(f"torchdismech.{module}").__all__)


def _room_of(module: types.ModuleType) -> str | None:
    name = module.__name__.removeprefix("torchdismech.")
    return next((page for page, room in ROOMS.items() if name in room.modules), None)
