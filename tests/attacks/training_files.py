"""Damaged recordings: each function writes one and returns its path, options to read it, and whether it is wrong."""

import csv
import io
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.training.swinging import DT, swinging_chain

Made = tuple[Path, dict[str, Any], bool]
CHAIN = swinging_chain(2, 12)
NESTED = CHAIN[0].transpose(0, 2, 1).tolist()
ABSURD = (np.inf, -np.inf, 1e200, -1e300, 1e9)


class Runs:
    """Pickled, it makes a file where it is loaded by a careless reader."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a reader would call."""
        return os.mkdir, (str(self.path),)


def _archive(path: Path, **changes: Any) -> Path:
    arrays = {"train": CHAIN, "dt": DT} | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def _flipped(chance: random.Random, data: bytes, count: int = 1) -> bytes:
    damaged = bytearray(data)
    for _ in range(count):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def _archive_bytes(chance: random.Random, folder: Path) -> Made:
    path = _archive(folder / "a.npz")
    data = path.read_bytes()
    patched = bytearray(data)
    local, central = data.index(b"PK\x03\x04"), data.index(b"PK\x01\x02")
    patched[local + 6] |= 1  # says that it is encrypted
    patched[central + 8] |= 1
    odd = bytearray(data)
    struct.pack_into("<H", odd, central + 10, 99)  # a compression that nobody knows
    struct.pack_into("<H", odd, local + 8, 99)
    large = bytearray(data)
    struct.pack_into("<I", large, central + 24, 2**32 - 2)  # says that it is large
    many = [data[: chance.randrange(len(data))], data[chance.randrange(1, 99) :][: len(data) // 2], bytes(patched)]
    many += [
        bytes(odd),
        bytes(large),
        b"",
        b"PK\x05\x06" + b"\0" * 18,
        bytes(chance.randrange(256) for _ in range(300)),
    ]
    path.write_bytes(chance.choice(many))
    return path, {"split": "train"}, True


def _archive_bits(chance: random.Random, folder: Path) -> Made:
    path = _archive(folder / "a.npz")
    path.write_bytes(_flipped(chance, path.read_bytes()))
    return path, {"split": "train"}, False  # a bit of the date says nothing


def _archive_header(chance: random.Random, folder: Path) -> Made:
    path = folder / "a.npz"
    shapes = ["(10000000000000,)", "(2, 12, 6, 3", "(-1, 12, 6, 3)", "(2, 12, 6, 3e3)", "__import__('os')", "(" * 300]
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {chance.choice(shapes)}, }}"
    plain = io.BytesIO()
    np.lib.format.write_array(plain, np.array(DT))
    with zipfile.ZipFile(path, "w") as file:
        text = header.encode().ljust(117) + b"\n"
        file.writestr("train.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + CHAIN.tobytes())
        file.writestr("dt.npy", plain.getvalue())
    return path, {"split": "train"}, True


def _archive_arrays(chance: random.Random, folder: Path) -> Made:
    stuck = np.zeros_like(CHAIN)
    far = CHAIN.copy()
    far[chance.randrange(2), chance.randrange(12), chance.randrange(6), chance.randrange(3)] = chance.choice(ABSURD)
    changes = chance.choice(
        [
            {"dt": chance.choice([np.nan, np.inf, 0.0, -1.0, 1e300, "x", None, 1e-300, DT * 1j])},
            {"train": chance.choice([stuck, far, stuck * np.nan, CHAIN[:, :2], CHAIN[..., :2], CHAIN * 1e3])},
            {"train": CHAIN.astype(object)},
            {"train": np.array([Runs(folder / "executed")], dtype=object)},
            {
                "train_id": chance.choice(
                    [np.array(["a\nb", "c"]), np.array([1, 1]), np.array([np.nan, 1]), np.zeros(3)]
                )
            },
            {"train": CHAIN.astype(chance.choice(["c16", "S8", "?", "M8[s]"]))},
        ]
    )
    return _archive(folder / "a.npz", **changes), {"split": "train"}, True


def _hostile_pickle(chance: random.Random, folder: Path) -> Made:
    path = folder / "a.pkl"
    laughs: list[Any] = [0.0]
    for _ in range(40):
        laughs = [laughs, laughs]
    row = [0.5] * 50_000
    loop: list[Any] = []
    loop.append(loop)
    contents = [
        pickle.dumps([Runs(folder / "executed")]),
        pickle.dumps(Runs(folder / "executed"), 0),
        pickle.dumps([laughs, laughs, laughs]),
        pickle.dumps([[row, row, row]] * 3_000_000),  # 7 MB in a file, 3.6 TB in memory
        pickle.dumps([[[10**4000, 1], [1, 2], [3, 4]]] * 3),
        pickle.dumps(loop),
        b"cos\nsystem\n(Vtouch executed\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x031+1\x85R.",
        b"\x80\x04c_codecs\nencode\n(N}\x8c\x0c__defaults__(K\x01tst" + b"b.",  # sets an attribute of what it is given
        b"\x80\x04\x8e" + (2**60).to_bytes(8, "little"),
        b"\x80\x04r\xff\xff\xff\xff.",
        b"(" * 100_000 + b"l" * 100_000 + b".",
        b"\x80\x63.",
        b"",
    ]
    path.write_bytes(chance.choice(contents))
    return path, {"dt": DT}, True


def _damaged_pickle(chance: random.Random, folder: Path) -> Made:
    path = folder / "a.pkl"
    data = pickle.dumps(chance.choice([NESTED, list(CHAIN[0].transpose(0, 2, 1))]), chance.randrange(2, 6))
    cut = chance.random() < 0.3
    path.write_bytes(data[: chance.randrange(len(data))] if cut else _flipped(chance, data, 3))
    return path, {"dt": DT}, cut  # another bit of a float is another float: nothing can tell


def _pickle_options(chance: random.Random, folder: Path) -> Made:
    path = folder / "a.pkl"
    path.write_bytes(pickle.dumps(NESTED))
    options = [{"dt": "0.01"}, {"dt": [1]}, {"dt": True}, {"dt": None}, {"dt": 1e300}, {"dt": np.nan}, {"dt": -1.0}, {}]
    return path, chance.choice([*options, {"dt": DT, "rate": 3}, {"dt": DT, "split": "train"}]), True


def _rows(positions: np.ndarray) -> list[list[str]]:
    header = ["time", *(f"{axis}{node}" for node in range(positions.shape[1]) for axis in "xyz")]
    return [header] + [[repr(DT * k), *map(repr, frame.flatten().tolist())] for k, frame in enumerate(positions)]


def _text(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _table_cells(chance: random.Random, folder: Path) -> Made:
    rows = _rows(CHAIN[0])
    row, column = chance.randrange(1, len(rows)), chance.randrange(1, len(rows[0]))
    rows[row][column] = chance.choice(
        ["1_0", "١", "0x10", "1e400", "-inf", "1e200", "9" * 5000, "a\nb", "1,0", "\0", "--", "1" * 200_000, "1e9"]
    )
    path = folder / "a.csv"
    path.write_text(_text(rows), encoding="utf-8")
    return path, {}, True


def _table_header(chance: random.Random, folder: Path) -> Made:
    rows = _rows(CHAIN[0])
    names = ["x" + "9" * 5000, "x99999", "x٣", "time", "", "x-1", "y0", "marker_1_x", "x1000000000000", "a\nb", "x0 x0"]
    rows[0][1 + chance.randrange(len(rows[0]) - 1)] = chance.choice(names)
    path = folder / "a.csv"
    path.write_text(_text(rows), encoding="utf-8")
    return path, {}, rows[0] != _rows(CHAIN[0])[0] and rows[0][4] != "marker_1_x" and rows[0][2] != "y0"


def _table_clock(chance: random.Random, folder: Path) -> Made:
    rows = _rows(CHAIN[0])
    clock = chance.choice(
        [
            [0.0] * 12,
            [1e308 * (-1) ** k for k in range(12)],
            [1e308 * k / 12 for k in range(12)],
            [1e-320 * k for k in range(12)],
            [np.nan] * 12,
            [*np.arange(11) * DT, np.inf],
            list(-np.arange(12) * DT),
        ]
    )
    for row, time in zip(rows[1:], clock, strict=True):
        row[0] = repr(float(time))
    path = folder / "a.csv"
    path.write_text(_text(rows), encoding="utf-8")
    return path, {}, True


def _table_bytes(chance: random.Random, folder: Path) -> Made:
    path = folder / "a.csv"
    good = _text(_rows(CHAIN[0])).encode()
    wide = ("time," + ",".join(f"{axis}{n}" for n in range(2000) for axis in "xyz") + "\n").encode()
    wide += b"".join(b"%f" % (k * DT) + b"," + b",".join(b"%d" % c for c in range(6000)) + b"\n" for k in range(3))
    cut = good[: good.rindex(b",")]  # elsewhere fewer digits, or fewer rows, may be what was meant
    damaged = [cut, good.decode().encode("utf-16"), b"\0" * 5000, b"", wide]
    damaged += [good.replace(b",", b";"), b'"' + good, bytes(chance.randrange(256) for _ in range(500))]
    path.write_bytes(chance.choice(damaged))
    return path, {}, True


def _trajectory(chance: random.Random, folder: Path) -> Made:
    path = folder / "a.h5"
    with h5py.File(path, "w") as file:
        kind = chance.choice(["empty", "group", "text", "short"])
        if kind == "group":
            file.create_group("time")
        elif kind == "text":
            file["time"] = "now"
        elif kind == "short":
            file["time"] = np.arange(3) * DT
            file["positions"] = CHAIN
    data = path.read_bytes()
    if chance.random() < 0.5:
        path.write_bytes(chance.choice([data[: chance.randrange(len(data))], b"\x89HDF\r\n\x1a\n" + b"\0" * 99, b""]))
    return path, {}, True


def _folder(chance: random.Random, folder: Path) -> Made:
    inside = folder / "recordings"
    inside.mkdir()
    (inside / "1.csv").write_text(_text(_rows(CHAIN[0])))
    other, options = inside / "2.csv", {}
    kind = chance.choice(
        ["pipe", "folder", "loop", "gone", "device", "frames", "nodes", "same", "option", "split", "name"]
    )
    if kind == "pipe":
        os.mkfifo(other)
    elif kind == "folder":
        other.mkdir()
    elif kind == "loop":
        other.symlink_to(other)
    elif kind == "gone":
        other.symlink_to(inside / "nowhere")
    elif kind == "device":
        other.symlink_to("/dev/zero")
    elif kind == "frames":
        other.write_text(_text(_rows(CHAIN[1, :7])))
    elif kind == "nodes":
        other.write_text(_text(_rows(CHAIN[1, :, :4])))
    elif kind == "same":
        (inside / "2.pkl").write_bytes(pickle.dumps(NESTED))
    elif kind == "name":
        (inside / "a\nb.csv").write_text(_text(_rows(CHAIN[1])))
    else:
        options = {"truncate": chance.choice([3, "yes", None])} if kind == "option" else {"split": "../recordings/x"}
    return inside, options, True


def _no_file(chance: random.Random, folder: Path) -> Made:
    names = ["", "a.npz", "x.txt", "x" * 300, "p.csv", "/dev/zero"]
    path = folder / chance.choice(names)
    if path.name == "x.txt":
        path.write_text("1")
    if path.name == "p.csv":
        os.mkfifo(path)
    return path, {}, True


FILES: dict[str, Callable[[random.Random, Path], Made]] = {
    "archive, bytes": _archive_bytes,
    "pickle, hostile": _hostile_pickle,
    "table, cells": _table_cells,
    "folder": _folder,
    "archive, arrays": _archive_arrays,
    "pickle, damaged": _damaged_pickle,
    "table, header": _table_header,
    "trajectory": _trajectory,
    "archive, header": _archive_header,
    "pickle, options": _pickle_options,
    "table, clock": _table_clock,
    "archive, bits": _archive_bits,
    "table, bytes": _table_bytes,
    "no file": _no_file,
}
