"""Damaged checkpoints: each function copies a run's folder and damages the copy; returns whether it must be refused."""

import copy
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from training.optimization import checkpoint

Damage = Callable[[random.Random, Path, Path], bool]
FACTS: tuple[Any, ...] = (-1, 10**30, "x", None, [], {}, [[1]], float("nan"), -float("inf"), True, 0.5)


def _raw(change: Callable[[random.Random, bytes], bytes]) -> Damage:
    """Return what damages the bytes of a file."""

    def damage(chance: random.Random, run: Path, copied: Path) -> bool:
        shutil.copytree(run, copied)
        path = copied / "last.safetensors"
        path.write_bytes(change(chance, path.read_bytes()))
        return True

    return damage


def _rewritten(change: Callable[[random.Random, dict, dict], bool]) -> Damage:
    """Return what changes tensors and facts, and makes the checksum anew as an attacker would."""

    def damage(chance: random.Random, run: Path, copied: Path) -> bool:
        shutil.copytree(run, copied)
        tensors, facts = checkpoint.load(copied, "last")
        wrong = change(chance, tensors, facts)
        checkpoint.save(copied, "last", tensors, facts)
        return wrong

    return damage


def _flipped(chance: random.Random, data: bytes) -> bytes:
    at, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def _fact(chance: random.Random, tensors: dict, facts: dict) -> bool:
    table = chance.choice([facts, facts["progress"], facts["sampler"]])
    key = chance.choice(sorted(table))
    table[key] = chance.choice([w for w in FACTS if type(w) is not type(table[key])])
    return False  # some are right: seconds may be 0.5, there may be no sampler


def _tensor(chance: random.Random, tensors: dict, facts: dict) -> bool:
    name = chance.choice(sorted(tensors))
    value = tensors[name]
    real = value if value.is_floating_point() else value.double()
    tensors[name] = chance.choice(
        [
            torch.full_like(real, torch.nan),
            torch.full_like(real, torch.inf),
            value.half(),
            value.long(),
            value.reshape(1, *value.shape),
            torch.zeros(0, dtype=value.dtype),
        ]
    )
    return True


def _renamed(chance: random.Random, tensors: dict, facts: dict) -> bool:
    name = chance.choice(sorted(tensors))
    tensors[chance.choice(["../../etc/passwd", "x" * 500, "optimizer/exp_avg/../x", ""])] = tensors.pop(name)
    return True


def _stage(chance: random.Random, tensors: dict, facts: dict) -> bool:
    facts["progress"]["stage"] = chance.choice([2, 1000, 2**52])
    return True


def _config(chance: random.Random, tensors: dict, facts: dict) -> bool:
    other = copy.deepcopy(facts["config"])
    other["robot"]["bending"] = 1.0
    facts["config"] = chance.choice([other, {}, {"robot": [[[]]]}])
    return True


def _recordings(chance: random.Random, tensors: dict, facts: dict) -> bool:
    names = list(facts["recordings"])
    facts["recordings"] = chance.choice(
        [{}, dict.fromkeys(names, "0"), {n: facts["recordings"][n] for n in reversed(names)}, {"a\nb": "0"}]
    )
    return True


def _compiled(chance: random.Random, tensors: dict, facts: dict) -> bool:
    bad = (["a", "cpu", "float64", 1, True], [2, "nowhere", "float64", 1, False], [2, "cpu", "load", 1, False], [2])
    facts["evaluations"] = [chance.choice(bad)]
    return True


def _other_kind(chance: random.Random, run: Path, copied: Path) -> bool:
    shutil.copytree(run, copied)
    path = copied / "last.safetensors"
    path.unlink()
    kind = chance.choice(["folder", "pipe", "device", "older", "weights", "loop", "none"])
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "older":
        (copied / "last.json").write_text('{"tensors": "../.."}')
    elif kind == "weights":
        shutil.copy(copied / "best.safetensors", path)
    return True


CHECKPOINTS: dict[str, Damage] = {
    "bit flipped": _raw(_flipped),
    "cut off": _raw(lambda chance, data: data[: chance.randrange(len(data))]),
    "longer": _raw(lambda chance, data: data + b"\0" * chance.randrange(1, 99)),
    "noise": _raw(lambda chance, data: bytes(chance.randrange(256) for _ in range(len(data)))),
    "header of 2^60 bytes": _raw(lambda chance, data: (2**60).to_bytes(8, "little") + data[8:]),
    "another fact": _rewritten(_fact),
    "another tensor": _rewritten(_tensor),
    "a tensor renamed": _rewritten(_renamed),
    "a stage that is not there": _rewritten(_stage),
    "another config": _rewritten(_config),
    "other recordings": _rewritten(_recordings),
    "odd evaluations": _rewritten(_compiled),
    "no such file": _other_kind,
}
