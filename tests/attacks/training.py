"""Damaged configs, checkpoints and recordings of fits: refused by one sentence, or used because they are right.

`python -m tests.attacks.training 100` from the repository's root tries so many and prints a table of what came of them.
"""

import copy
import json
import random
import signal
import sys
import tempfile
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.attacks.training_checkpoints import CHECKPOINTS
from tests.attacks.training_files import FILES
from tests.training.swinging import DT, swinging_chain
from torchdismech import InputError
from training.config import load
from training.data import Rules, prepared, read
from training.optimization.loop import Trainer
from training.robots.systems import build
from training.splits import prepared_recordings

LIMIT = 120  # s; the slowest takes 2 s on a machine that does nothing else
LONGEST = 1500  # characters of a sentence
GOOD = """
name = "attacked"
seed = 3
[data]
path = "PATH"
held_out = 0.34
rules = { max_gap = 4, despike_speed = 6.0 }
[robot]
gripped = [0, 1]
hold = "direction"
linear_density = 0.1
bending = 3e-3
gravity = [0.0, 0.0, -9.81]
[simulation]
force_tolerance = 1e-6
substeps = 1
compile = false
[constants]
bending = { tensors = ["bend_twist.EI1", "bend_twist.EI2"] }
rest = { tensors = ["stretch.rest_length"], kind = "shift", per = "element", unit = 1e-3 }
[terms]
stiffer = { kind = "energy", network = "ConvexEnergy", options = { strains = 2, size = 8.0, hidden = [4] } }
pushed = { kind = "force", network = "MessagePassingForce", options = { rounds = 1, width = 4, force = 0.01 } }
[loss]
scale = 1e-3
[noise]
position = 1e-4
velocity = 1e-3
[[stages]]
name = "first"
train = ["constants", "learned"]
iterations = 4
horizon = [2, 3]
batch = 2
rates = { constants = 0.05, learned = 1e-3 }
check_every = 2
[[stages]]
name = "sharp"
train = ["constants"]
method = "gauss_newton"
iterations = 1
horizon = [2]
batch = 2
[logging]
save_every = 1
shapes_at = [0.02, 0.05]
"""
NUMBERS: tuple[Any, ...] = (0, -1, 10**18, 2**63, 10**30, -0.0, 1e300, -1e300, 1e-300, 5e-324, 1e200)
NUMBERS += (float("nan"), float("inf"), -float("inf"))
WRONG: tuple[Any, ...] = ("x", "", "1.0", True, None, [], {}, [[]], [{}], [1, 2, 3], ["a"], 0.5)
WORDS = ("naïve", "a\u0000b", "\x1b[31m", "../../etc/passwd", "/etc/passwd", "a\nb", "a" * 5000, "", " ", ".", "..")


@dataclass(frozen=True)
class Attack:
    """What is tried: `use` reads it and returns whether what came out is right; `wrong` if it has to be refused."""

    kind: str
    use: Callable[[], bool]
    wrong: bool


@dataclass(frozen=True)
class Outcome:
    """What came of an attack: "refused", "accepted", "traceback", "silent" or "hang", and the words."""

    attack: Attack
    name: str
    words: str


class _TooLong(BaseException):
    pass


def tried(attack: Attack) -> Outcome:
    """Return what comes of an attack."""
    try:
        with _limited(LIMIT), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # NumPy's, which would stand on the screen without a place
            right = attack.use()
    except InputError as error:
        plain = len(str(error)) <= LONGEST and str(error).isprintable()
        return Outcome(attack, "refused" if plain else "traceback", str(error)[:LONGEST])
    except _TooLong:
        return Outcome(attack, "hang", f"more than {LIMIT} s")
    except Exception:
        return Outcome(attack, "traceback", traceback.format_exc())
    if attack.wrong or not right:
        return Outcome(attack, "silent", "accepted" if right else "accepted, and its numbers are wrong")
    return Outcome(attack, "accepted", "")


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attacks(count: int, folder: Path, seed: int = 13) -> Iterator[Attack]:
    """Yield so many attacks, the same ones for each seed: two in five on configs and on data, one on checkpoints."""
    archive = folder / "good.npz"
    np.savez(archive, train=swinging_chain(3, 12), eval=swinging_chain(1, 12), dt=DT)
    good = tomllib.loads(GOOD.replace("PATH", str(archive)))
    config = folder / "good.json"
    config.write_text(json.dumps(good))
    run = folder / "run"
    fitted(config, run)
    for k in range(count):
        chance = random.Random(f"{seed} {k}")
        own = folder / str(k)
        own.mkdir()
        if k % 5 in (0, 2):
            yield _on_config(CONFIGS[k // 5 % len(CONFIGS)], chance, copy.deepcopy(good), own)
        elif k % 5 in (1, 3):
            yield _on_data(list(FILES)[(k // 5 * 2 + k % 5 // 3) % len(FILES)], chance, own)
        else:
            yield _on_checkpoint(list(CHECKPOINTS)[k // 5 % len(CHECKPOINTS)], chance, run, config, own)


def fitted(config: Path, run: Path, resume: bool = False) -> bool:
    """Fit one batch, and one more where a run is resumed; return whether all weights are finite."""
    made = load(config)
    recordings, _ = prepared_recordings(made, made.data.train)
    parts = recordings.split(made.data.held_out, made.seed)
    torch.manual_seed(made.seed)
    trainer = Trainer(made, build(made, parts[0]), *parts, run)
    if resume:
        trainer.resume()
    trainer.run(until=trainer.progress.total + 1)
    return all(bool(p.isfinite().all()) for p in trainer.parameters.values())


def _on_config(mutation: Callable, chance: random.Random, tables: dict[str, Any], folder: Path) -> Attack:
    path = folder / "config.json"
    what, wrong = mutation(chance, tables, path)
    if not path.exists():
        path.write_text(json.dumps(tables))
    return Attack(f"config: {what}", lambda: fitted(path, folder / "run"), wrong)


def _on_data(name: str, chance: random.Random, folder: Path) -> Attack:
    path, options, wrong = FILES[name](chance, folder)

    def use() -> bool:
        positions = prepared(read(path, **options), Rules())[0].positions
        assert not list(folder.glob("executed*")), "a pickle ran code"
        return bool(positions.isfinite().all())

    return Attack(f"data: {name}", use, wrong)


def _on_checkpoint(name: str, chance: random.Random, run: Path, config: Path, folder: Path) -> Attack:
    wrong = CHECKPOINTS[name](chance, run, folder / "run")
    return Attack(f"checkpoint: {name}", lambda: fitted(config, folder / "run", resume=True), wrong)


# ---- configs -------------------------------------------------------------------------------------------------------


def _places(tables: Any) -> list[tuple[Any, Any]]:
    """Return (table or list, key) of all that is in nested tables and lists."""
    inside = list(tables.items() if isinstance(tables, dict) else enumerate(tables))
    found = [(tables, key) for key, _ in inside]
    for _, value in inside:
        if isinstance(value, (dict, list)):
            found += _places(value)
    return found


def _number(chance: random.Random, tables: dict, path: Path) -> tuple[str, bool]:
    numbers = [(t, k) for t, k in _places(tables) if isinstance(t[k], (int, float)) and not isinstance(t[k], bool)]
    table, key = chance.choice(numbers)
    table[key] = chance.choice(NUMBERS)
    absurd = abs(table[key]) >= 1e15 or table[key] != table[key]
    open_end = key in ("save_every", "check_every")  # never is a number, too
    return f"number {key} = {table[key]!r}", absurd and not open_end


def _wrong_type(chance: random.Random, tables: dict, path: Path) -> tuple[str, bool]:
    table, key = chance.choice([p for p in _places(tables) if p[1] != "compile"])
    kind = type(table[key])
    table[key] = chance.choice([w for w in WRONG if type(w) is not kind and not (kind is float and w == 0.5)])
    return f"type {key} = {table[key]!r}", False


def _word(chance: random.Random, tables: dict, path: Path) -> tuple[str, bool]:
    table, key = chance.choice([(t, k) for t, k in _places(tables) if isinstance(t[k], str)])
    table[key] = chance.choice(WORDS)
    return f"word {key} = {table[key][:20]!r}", table[key] != "naïve"


def _typo(chance: random.Random, tables: dict, path: Path) -> tuple[str, bool]:
    table, key = chance.choice([(t, k) for t, k in _places(tables) if isinstance(k, str)])
    free = table is tables["constants"] or table is tables["terms"]
    wrong = chance.choice(["a.b", "type", "", "é", "a/b", "keys"]) if free else key + chance.choice("xX_1é ")
    table[wrong] = table.pop(key)
    return f"name {wrong!r} for {key}", True


def _missing(chance: random.Random, tables: dict, path: Path) -> tuple[str, bool]:
    table, key = chance.choice(_places(tables))
    if isinstance(table, dict):
        del table[key]
    else:
        table.clear()
    return f"without {key}", False


def _text(chance: random.Random, tables: dict, path: Path) -> tuple[str, bool]:
    whole = path.with_name("config.json")
    good = json.dumps(tables).encode()
    damaged = {
        "cut": good[: chance.randrange(len(good))],
        "deep": b'{"name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "digits": good.replace(b'"seed": 3', b'"seed": ' + b"9" * 5000),
        "bytes": bytes(chance.randrange(256) for _ in range(400)),
        "no table": b"[1, 2]",
        "UTF-16": good.decode().encode("utf-16"),
        "zero": b"",
        "mark": b"\xef\xbb\xbf" + good,
    }
    name = chance.choice(list(damaged))
    whole.write_bytes(damaged[name])
    return f"text {name}", name != "mark"


CONFIGS = (_number, _wrong_type, _word, _typo, _number, _missing, _text)


def main(count: int) -> int:
    """Try so many attacks, print counts and all that went wrong; return how many went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = [tried(attack) for attack in attacks(count, Path(folder))]
    counts = Counter((o.attack.kind.partition(":")[0], o.name) for o in outcomes)
    names = ("refused", "accepted", "traceback", "silent", "hang")
    print(f"{'':12}" + "".join(f"{name:>11}" for name in names))
    for kind in ("config", "data", "checkpoint"):
        print(f"{kind:12}" + "".join(f"{counts[kind, name]:11}" for name in names))
    bad = [o for o in outcomes if o.name not in ("refused", "accepted")]
    for outcome in bad:
        print(f"{outcome.name}: {outcome.attack.kind}: {outcome.words}")
    return len(bad)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100) > 0)
