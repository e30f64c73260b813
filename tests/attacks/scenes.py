"""Mutated scenes: each is refused by one sentence that names the key, or runs; nothing else may happen.

`python -m tests.attacks.scenes 600` from the repository's root tries so many and prints a table of what came of them;
a second number is another seed.
"""

import contextlib
import copy
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import trimesh

from tests.io.scene_texts import GOOD, ball, floor, obstacles, scene_text
from tests.io.test_documentation import DOCUMENTATION, FILES
from torchdismech import InputError, rollout
from torchdismech.io.scene import load_scene

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ("cantilever", "demo", "gripper", "jellyfish", "manta_ray", "parachute", "snake", "worm")
LIMIT = 60  # s of the processor, so that a busy machine is no hang; the slowest scene takes a few
STEPS = 2
SEED = 13
FOREIGN = {
    "empty.txt": b"",
    "binary.txt": bytes(range(256)),
    "half.txt": b"*Nodes\n0,0,0\n0.1,0,0\n0.2,0",
    "infinite.txt": b"*Nodes\n0,0,0\ninf,0,0\n*Edges\n1,2\n",
    "far.txt": b"*Nodes\n0,0,0\n1e200,0,0\n*Edges\n1,2\n",
    "index.txt": b"*Nodes\n0,0,0\n0.1,0,0\n*Edges\n1,99999999999999999999\n",
    "underscore.csv": b"0,1_0,0,0\n1,0,0,0\n",
    "backwards.csv": b"1,0,0,0\n0,0,0,0\n",
    "one.csv": b"0\n",
    "wide.csv": b"0," + b"1" * 200_000 + b"\n",
    "tabs.txt": b"0\t\t1\n",
    "text.xlsx": b"0,0,0,0\n",
    "cut.xlsx": b"PK\x03\x04" + bytes(40),
    "old.xls": b"\xd0\xcf\x11\xe0",
    "none.py": b"def act(time, model, control):\n    return None\n",
    "number.py": b"def act(time, model, control):\n    return control.replace(natural_twist=0.0)\n",
    "raises.py": b"def act(time, model, control):\n    return 1 / 0\n",
    "syntax.py": b"def act(:\n",
    "noise.stl": b"solid x\nfacet normal 0 0 0\nouter loop\nvertex 0 0 nan\n",
}
NUMBERS = (0.0, -0.0, -1.0, 1e300, -1e300, 1e-300, 5e-324, 1e200, float("nan"), float("inf"), -float("inf"))
NUMBERS += (10**18, -(10**18), 2**63, 10**30, 10**4000, -1, 0, 1)
WRONG: tuple[Any, ...] = ("x", "", "1.0", True, [], {}, [[]], [{}], {"shape": 3}, [1, 2, 3], ["a"], 0.5, 3)
WORDS = ("naïve", "длина", "长度", "\u202egpj", "a\u0000b", "\x1b[31m", "🤖", "../../etc/passwd", "a" * 5000, "", " ")


@dataclass(frozen=True)
class Mutant:
    """A scene with a fault, or with a change that may be right.

    Attributes
    ----------
    kind : what was done.
    where : what a refusal has to name, one of them at least: the key, or the table around it; none if anything that is
        wrong with the scene will do.
    text : the scene.
    must_fail : whether no reading of it is right.
    """

    kind: str
    where: tuple[str, ...]
    text: bytes
    must_fail: bool = False


def bases(folder: Path) -> list[dict[str, Any]]:
    """Return the tables of good scenes, with the files that they name in the folder."""
    found = []
    for name in EXAMPLES:
        source = ROOT / ("torchdismech" if name == "demo" else "examples") / name
        tables = tomllib.loads((source / "scene.toml").read_text(encoding="utf-8"))
        for file in source.iterdir():
            if file.is_file() and file.suffix in (".txt", ".obj", ".csv", ".py"):
                shutil.copy(file, folder / f"{name}_{file.name}")
        found.append(_renamed(tables, name, source))
    found[EXAMPLES.index("demo")]["batch"]["size"] = 2
    for name, content in FILES.items():
        (folder / name).write_text(content)
    trimesh.creation.icosphere(1, radius=0.1).apply_translation([0, 0, -0.3]).export(folder / "rock.stl")
    documented = re.search(r"```toml\n(.*?)```", DOCUMENTATION.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert documented is not None
    found.append(tomllib.loads(documented[1]))
    sphere = ball(friction="0.2", velocity="[0, 0, -0.1]")
    touching = {"floor": floor(friction="0.3"), "self_contact": "stiffness = 1.0\nring = 1"}
    found.append(tomllib.loads(scene_text(**touching) + obstacles(sphere).removeprefix(scene_text())))
    static = 'integrator = "static"\nload_steps = 2\nunstable = "report"'
    found.append(tomllib.loads(scene_text(simulation=static, mass="nodes=[3]\nadd=0.1")))
    for name, content in FOREIGN.items():
        (folder / name).write_bytes(content)
    assert set(GOOD) <= set(found[-1])
    return found


def _renamed(tables: Any, name: str, source: Path) -> Any:
    """Return the tables with the names of files as they are in the folder of all scenes."""
    if isinstance(tables, dict):
        return {key: _renamed(value, name, source) for key, value in tables.items()}
    if isinstance(tables, list):
        return [_renamed(value, name, source) for value in tables]
    if isinstance(tables, str) and (source / tables.partition(":")[0]).is_file():
        return f"{name}_{tables}"
    return tables


# ---- mutations ---------------------------------------------------------------------------------------------------


def mutants(count: int, folder: Path, seed: int) -> Iterator[Mutant]:
    """Yield so many mutants, the same ones for each seed."""
    chance = random.Random(seed)
    scenes = bases(folder)
    for k in range(count):
        tables = copy.deepcopy(scenes[k % len(scenes)])
        yield MUTATIONS[k // len(scenes) % len(MUTATIONS)](chance, tables)


def _typo(chance: random.Random, tables: dict) -> Mutant:
    table, key, _ = chance.choice([place for place in _places(tables) if isinstance(place[1], str)])
    letters = list(key)
    at = chance.randrange(len(letters))
    letters[at] = chance.choice(["", letters[at] * 2, letters[at].upper() + "_", "é", chr(ord(letters[at]) + 1)])
    wrong = "".join(letters)
    if wrong in table or not wrong:
        wrong = key + "x"
    table[wrong] = table.pop(key)
    return Mutant("misspelt key", (_shown(wrong),), _toml(tables), must_fail=True)


def _unknown(chance: random.Random, tables: dict) -> Mutant:
    inside = [value for _, _, value in _places(tables) if isinstance(value, dict)] + [tables]
    name = chance.choice(["extra", "mass_", "Radius", "__proto__", "密度", "a.b", "colour"])
    chance.choice(inside)[name] = chance.choice([1, "x", {}, [1.0]])
    return Mutant("unknown key", (name,), _toml(tables), must_fail=True)


def _wrong_type(chance: random.Random, tables: dict) -> Mutant:
    table, key, value = _place(chance, tables)
    table[key] = chance.choice([w for w in WRONG if type(w) is not type(value)])
    return Mutant("wrong type", _names_of(tables, table, key), _toml(tables))


def _number(chance: random.Random, tables: dict) -> Mutant:
    numbers = [p for p in _places(tables) if isinstance(p[2], int | float) and not isinstance(p[2], bool)]
    table, key, _ = chance.choice(numbers)
    table[key] = chance.choice(NUMBERS)
    return Mutant("number", (), _toml(tables))


def _units(chance: random.Random, tables: dict) -> Mutant:
    numbers = [p for p in _places(tables) if isinstance(p[2], float)]
    table, key, value = chance.choice(numbers)
    table[key] = value * chance.choice([1e3, 1e-3, 1e6, 1e-6, 9.81, 57.29577951308232, -1.0])
    return Mutant("units", (), _toml(tables))


def _missing(chance: random.Random, tables: dict) -> Mutant:
    table, key, _ = _place(chance, tables)
    del table[key]
    return Mutant("missing", (), _toml(tables))


def _file(chance: random.Random, tables: dict) -> Mutant:
    named = [p for p in _places(tables) if isinstance(p[2], str) and re.search(r"\.(txt|csv|py|stl|obj)", p[2])]
    wrong = chance.choice([*FOREIGN, "absent.txt", "/dev/zero", ".", "a\nb.txt", "x" * 300])
    table, key, _ = chance.choice(named) if named else (tables.setdefault("actuation", {}), "natural_twist", None)
    table[key] = wrong + (":act" if wrong.endswith(".py") else "")
    return Mutant("file", (), _toml(tables), must_fail=True)


def _text(chance: random.Random, tables: dict) -> Mutant:
    texts = [p for p in _places(tables) if isinstance(p[2], str)]
    table, key, _ = chance.choice(texts)
    table[key] = chance.choice(WORDS)
    return Mutant("text", _names_of(tables, table, key), _toml(tables))


def _twice(chance: random.Random, tables: dict) -> Mutant:
    lists = [value for _, _, value in _places(tables) if isinstance(value, list) and value]
    if chance.random() < 0.3 or not lists:
        name = chance.choice(list(tables))
        return Mutant("twice", ("not TOML",), _toml(tables) + _toml({name: tables[name]}), must_fail=True)
    values = chance.choice(lists)
    values.append(copy.deepcopy(chance.choice(values)))
    return Mutant("twice", (), _toml(tables))


def _length(chance: random.Random, tables: dict) -> Mutant:
    lists = [value for _, _, value in _places(tables) if isinstance(value, list) and value]
    if lists:
        values = chance.choice(lists)
        del values[chance.randrange(len(values)) :]
    return Mutant("length", (), _toml(tables))


def _nested(chance: random.Random, tables: dict) -> Mutant:
    table, key, _ = _place(chance, tables)
    deep: Any = 1
    for _ in range(chance.choice([25, 90])):  # what takes more is written by hand in test_malformed_scenes.py
        deep = chance.choice([[deep], {"a": deep}])
    table[key] = deep
    return Mutant("nested", (), _toml(tables), must_fail=True)


def _bytes(chance: random.Random, tables: dict) -> Mutant:
    text = bytearray(_toml(tables))
    for _ in range(chance.choice([1, 1, 3])):
        at = chance.randrange(len(text))
        kind = chance.randrange(4)
        if kind == 0:
            del text[at:]
        elif kind == 1:
            del text[at]
        elif kind == 2:
            text[at] = chance.randrange(256)
        else:
            text[:0] = b"\xef\xbb\xbf"
        if not text:
            break
    return Mutant("bytes", (), bytes(text))


MUTATIONS: tuple[Callable[[random.Random, dict], Mutant], ...] = (
    _typo, _number, _wrong_type, _file, _unknown, _number, _units, _text, _missing, _twice, _length, _nested, _bytes,
)  # fmt: skip


def _places(tables: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (table or list, key or index, value) of everything in the tables."""
    for key, value in list(tables.items() if isinstance(tables, dict) else enumerate(tables)):
        yield tables, key, value
        if isinstance(value, dict | list):
            yield from _places(value)


def _place(chance: random.Random, tables: dict) -> tuple[Any, Any, Any]:
    """Return a place: in a table rather than in one of its long lists."""
    places = list(_places(tables))
    named = [place for place in places if isinstance(place[1], str)]
    return chance.choice(named if chance.random() < 0.8 else places)


def _names_of(tables: dict, table: Any, key: Any) -> tuple[str, ...]:
    """Return the keys that name a place: its own, and those of what it is in."""
    names = [key] if isinstance(key, str) else []
    while table is not tables:
        inside = table
        table, key, _ = next(place for place in _places(tables) if place[2] is inside)
        names += [key] if isinstance(key, str) else []
    return tuple(names)


def _shown(key: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in key)


def _toml(tables: dict) -> bytes:
    return "".join(f"{json.dumps(key)} = {_value(value)}\n" for key, value in tables.items()).encode()


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


# ---- what comes of them ------------------------------------------------------------------------------------------


class _Late(BaseException):
    """The time is up."""


def outcome(mutant: Mutant, folder: Path) -> str:
    """Return "refused", "ran", or what must not happen: "traceback", "hang", "accepted", "unnamed", "not finite"."""
    path = folder / "scene.toml"
    path.write_bytes(mutant.text)
    try:
        with _limited(LIMIT):
            finite = _runs(path)
    except InputError as error:
        return "refused" if _names(str(error), mutant, folder) else f"unnamed: {error}"
    except _Late:
        return "hang"
    except Exception:
        return f"traceback: {traceback.format_exc()}"
    if mutant.must_fail:
        return "accepted"
    return "ran" if finite else "not finite"


def _runs(path: Path) -> bool:
    """Run the first steps and return whether the positions of all robots that did not fail are finite."""
    scene = load_scene(path, {"simulation.compile": False})
    setup = scene.build(allow_code=True)
    steps = min(STEPS, setup.steps)
    try:
        run = rollout(
            setup.model, setup.state, setup.integrator, steps, schedule=setup.schedule, controller=setup.controller
        )
    except InputError as error:  # what shows in a run only, as that nothing holds a robot: nobody read a file then
        raise InputError(f"{path}: {error}") from error
    return bool(torch.isfinite(run.positions[-1]).all())


def _names(message: str, mutant: Mutant, folder: Path) -> bool:
    """Return whether the message is about this scene or a file of it, in plain text, and names what was changed."""
    lines = message.splitlines()
    plain = all(c.isprintable() for line in lines for c in line) and len(message) < 10_000
    named = not mutant.where or any(name in message for name in mutant.where)
    return plain and named and lines[0].startswith(str(folder))


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise _Late

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def tried(count: int, folder: Path, step: int = 1, seed: int = SEED) -> dict[tuple[str, str], list[str]]:
    """Return what came of each step-th of so many mutants: by (kind, outcome), the details of each."""
    found: dict[tuple[str, str], list[str]] = {}
    for k, mutant in enumerate(mutants(count, folder, seed)):
        if k % step == 0:
            name, _, detail = outcome(mutant, folder).partition(": ")
            found.setdefault((mutant.kind, name), []).append(f"mutant {k} {mutant.where}: {detail}")
    return found


def main(count: int, seed: int = SEED) -> None:
    """Print a table of what came of the mutants, and what must not have come."""
    with tempfile.TemporaryDirectory() as folder:
        found = tried(count, Path(folder), seed=seed)
    names = Counter(refused=0, ran=0)
    for (_, name), details in found.items():
        names[name] += len(details)
    kinds = sorted({kind for kind, _ in found})
    print(f"{'':<14}" + "".join(f"{name:>12}" for name in names))
    for kind in kinds:
        print(f"{kind:<14}" + "".join(f"{len(found.get((kind, name), [])):>12}" for name in names))
    print(f"{'all':<14}" + "".join(f"{number:>12}" for number in names.values()))
    for (kind, name), details in found.items():
        if name not in ("refused", "ran"):
            print(f"\n{kind}: {name}", *details, sep="\n  ")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
