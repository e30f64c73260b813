"""The rooms of docs/architecture.md import only what stands above them, and importing the package stays light."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = "torchdismech"
# Applications and tools at the repository's root use the library; the library never uses them.
APPLICATIONS = {"models", "training", "benchmarks", "examples", "studies", "tests"}
# Needed by some users in some calls only: imported where they are used.
LAZY = {
    "casadi",
    "h5py",
    "imageio",
    "matplotlib",
    "pydantic",
    "scipy.optimize",
    "tensorboard",
    "trimesh",
    "typer",
    "viser",
}
ROOF = {"__init__", "__main__"}


def floors_of(architecture: str) -> dict[str, int]:
    """Return the floor of each room, from the table in the text of docs/architecture.md."""
    floors = {}
    for number, names in re.findall(r"^\|\s*(\d+)\s*\|([^|]*)\|", architecture, flags=re.MULTILINE):
        for name in re.findall(r"`([a-z_]+)(?:/|\.py)`", names):
            floors[name] = int(number)
    return floors


def imported_modules(tree: ast.AST, package: list[str]) -> list[tuple[int, str]]:
    """Return (line, dotted module) of each import anywhere in a file of the package ``package``.

    ``from x import y`` counts as x.y, since y may be a module. Imports inside functions, under TYPE_CHECKING and by a
    literal ``import_module("...")`` count too.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) + 1 - node.level] if node.level else []
            origin = [*parent, *([node.module] if node.module else [])]
            found += [(node.lineno, ".".join([*origin, alias.name])) for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                found.append((node.lineno, node.args[0].value))
    return found


def violation(room: str, module: str, floors: dict[str, int]) -> str | None:
    """Return what is wrong with an import of the dotted ``module`` by a file of ``room``, or None."""
    top, _, rest = module.partition(".")
    if top in APPLICATIONS:
        return f"imports the application {top}/; the library never does"
    if top != PACKAGE or room in ROOF:
        return None
    target = rest.split(".")[0]
    if target == room:
        return None
    if target not in floors:
        return f"imports {module}: import the name from the room that defines it"
    if floors[target] > floors[room]:
        return f"imports {target} (floor {floors[target]}) from floor {floors[room]}: upward"
    if floors[target] == floors[room]:
        return f"imports its peer {target} (floor {floors[room]})"
    return None


def violations(root: Path, floors: dict[str, int]) -> list[str]:
    """Return a sentence for each forbidden import in the package at ``root``, and for each room without a floor."""
    found = []
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).with_suffix("").parts
        room = inside[0]
        name = path.relative_to(root.parent).as_posix()
        if room not in floors and room not in ROOF:
            found.append(f"{name}: the room {room} has no floor in docs/architecture.md")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        for line, module in imported_modules(tree, [PACKAGE, *inside[:-1]]):
            complaint = violation(room, module, floors)
            if complaint:
                found.append(f"{name}:{line}: {complaint}")
    return found


@pytest.fixture(scope="module")
def floors() -> dict[str, int]:
    """Return the floors that the project's own map gives."""
    return floors_of((REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8"))


def test_map_has_every_floor(floors):
    """Read the rooms out of the map: their order is what the other tests stand on."""
    order = [
        "errors",
        "geometry",
        "sparse",
        "solve",
        "robot",
        "elastic",
        "model",
        "builder",
        "integrate",
        "runs",
        "io",
    ]
    assert [floors[room] for room in order] == sorted({floors[room] for room in order})
    assert floors["elastic"] == floors["forces"]


def test_rooms_import_only_from_floors_above(floors):
    """Find no upward import, no import between peers and no import of an application in the package."""
    found = violations(REPOSITORY / PACKAGE, floors)
    assert not found, "\n".join(found)


def files_imported(path: Path, root: Path) -> set[str]:
    """Return the files of the package that a file imports anywhere, but for types only, by dotted name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    package = [PACKAGE, *path.relative_to(root).with_suffix("").parts[:-1]]
    found = set()
    for _, name in imported_modules(tree, package):
        # the name itself may be a file, or something in one
        for module in (name, name.rpartition(".")[0]):
            if root.parent.joinpath(*module.split(".")).with_suffix(".py").exists():
                found.add(module)
    return found


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Return files that import each other in a circle, or nothing: what is left once files without imports are gone."""
    left = {name: set(found) & imports.keys() for name, found in imports.items()}
    while free := {name for name, found in left.items() if not found & left.keys()}:
        left = {name: found for name, found in left.items() if name not in free}
    return sorted(left)


def test_no_files_import_each_other_in_a_circle():
    """Find no circle among the files of the library; find one that is there."""
    root = REPOSITORY / PACKAGE
    files = {".".join([PACKAGE, *p.relative_to(root).with_suffix("").parts]): p for p in root.rglob("*.py")}
    assert not circle({name: files_imported(path, root) for name, path in files.items()})
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


FORBIDDEN = {
    "upward": ("geometry/frames.py", "from torchdismech.solve import newton\n", "upward"),
    "upward, whole module": ("geometry/frames.py", "import torchdismech.model as m\n", "upward"),
    "upward, from the package": ("solve/newton.py", "from torchdismech import model\n", "upward"),
    "upward, relative": ("solve/newton.py", "from ..elastic import term\n", "upward"),
    "upward, relative to a file": ("sparse/pattern.py", "from .. import robot\n", "upward"),
    "upward, in a function": (
        "robot/state.py",
        "def f():\n    if True:\n        from torchdismech.model import Model\n",
        "upward",
    ),
    "upward, for types only": (
        "robot/state.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..model import Model\n",
        "upward",
    ),
    "upward, by name": (
        "robot/state.py",
        "from importlib import import_module\nimport_module('torchdismech.model')\n",
        "upward",
    ),
    "peer": ("elastic/term.py", "from torchdismech.forces import base\n", "peer"),
    "public name": ("solve/newton.py", "from torchdismech import Model\n", "defines it"),
    "application": ("model/model.py", "def f():\n    import training.fit\n", "application"),
    "network": ("elastic/learned.py", "from models.mlp import MLP\n", "application"),
    "room off the map": ("utils.py", "", "no floor"),
}


@pytest.mark.parametrize(("file", "source", "complaint"), FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_checker_finds_a_fabricated_violation(tmp_path, floors, file, source, complaint):
    """Plant one forbidden import in a made-up package and find exactly it."""
    path = tmp_path / PACKAGE / file
    path.parent.mkdir(parents=True)
    path.write_text(source, encoding="utf-8")
    found = violations(tmp_path / PACKAGE, floors)
    assert len(found) == 1 and complaint in found[0] and file in found[0], found


def test_checker_accepts_what_is_allowed(tmp_path, floors):
    """Accept imports from above, within a room, of other packages, and anything in the package's own __init__."""
    allowed = {
        "model/model.py": "import torch\nfrom torchdismech.elastic import term\nfrom ..errors import Status\n",
        "elastic/term.py": "from . import energy\nfrom .energy import psi\nfrom ..sparse.pattern import Pattern\n",
        "elastic/energy.py": "from torchdismech import geometry\nimport modelsim\n",
        "__init__.py": "from .cli import app\nfrom torchdismech.model import Model\n",
    }
    for file, source in allowed.items():
        path = tmp_path / PACKAGE / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    assert violations(tmp_path / PACKAGE, floors) == []


def test_command_line_begins_without_torch():
    """Import what answers signals, and the command line itself, in a fresh interpreter: torch is not imported yet."""
    script = "import sys; import torchdismech.cli, torchdismech.system.interrupts; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert run.stdout.strip() == "False"


def test_importing_the_package_stays_light():
    """Import torchdismech in a fresh interpreter: of the heavy packages, none that torch and numpy did not bring."""
    script = (
        "import sys, numpy, torch; before = set(sys.modules); import torchdismech; torchdismech.Model; "
        "print(*(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    loaded = set(run.stdout.split())
    assert PACKAGE in loaded
    assert not (loaded & LAZY), f"imported at once, should be imported where used: {sorted(loaded & LAZY)}"


def test_a_name_of_the_package_is_looked_for_once():
    """Find a name in the package itself from its second use on; no module takes its place, and `dir` lists it once."""
    script = (
        "import torchdismech as td; td.Control, td.rollout, td.unroll; "
        "import torchdismech.runs.rollout, torchdismech.runs.unroll; "
        "print('Control' in vars(td), callable(td.rollout), callable(td.unroll), len(dir(td)) == len({*dir(td)}))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert run.stdout.strip() == "True True True True"


def test_rods_step_without_what_is_slow_to_import():
    """Build rods and take a step in a fresh interpreter: SciPy is a tenth of the way there, SymPy a third."""
    script = (
        "import sys, gc; from torchdismech import State; from torchdismech.io.scene import load_scene; "
        "setup = load_scene('torchdismech/demo/scene.toml').build(); setup.integrator.step(setup.model, setup.state); "
        "print(gc.isenabled(), {'scipy.sparse', 'scipy.linalg', 'scipy.spatial', 'sympy'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert run.stdout.split(maxsplit=1) == ["True", "set()\n"], run.stdout


def test_studies_import_neither_each_other_nor_examples():
    """Read each study alone: what two of them share stands in the library."""
    found = []
    for path in sorted((REPOSITORY / "studies").rglob("*.py")):
        own = f"studies.{path.parent.name}."
        imports = imported_modules(ast.parse(path.read_text(encoding="utf-8")), ["studies", path.parent.name])
        found += [f"{path.name}:{line}: {name}" for line, name in imports if _elsewhere(name, own)]
    assert not found, "\n".join(found)
    assert _elsewhere("studies.knot.knot.main", "studies.cloth.") and _elsewhere(
        "examples.running.run", "studies.knot."
    )


def _elsewhere(module: str, own: str) -> bool:
    return module.startswith(("studies.", "examples.")) and not module.startswith(own)


def test_examples_are_short_and_stand_alone():
    """Import the library, the own folder and `running.py` only, in fewer than 120 lines a file."""
    for path in sorted((REPOSITORY / "examples").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        own = ("examples.running.", f"examples.{path.parent.name}.")
        for _, name in imported_modules(ast.parse(text), ["examples", path.parent.name]):
            assert name.startswith(own) or not name.startswith(("examples.", "studies.", "training.", "models.")), path
        assert len(text.splitlines()) < 120, path
