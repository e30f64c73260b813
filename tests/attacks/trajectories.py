"""Damaged and hostile trajectory files, made from a good one: the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np

__all__ = ["ATTACKS", "damaged"]

# what an attack may aim at
ROWS = ("time", "step", "positions", "velocities", "twist", "newton/status", "newton/residual", "energy/kinetic")
STATE = ("state/q", "state/velocity", "state/director", "state/reference_twist", "state/time", "state/step")
OTHERS = ("topology/rod_edges", "randomized/rod.youngs", "checksums/rows", "checksums/fixed", "texts/scene")
GROUPS = ("energy", "newton", "state", "state/backup", "topology", "randomized", "checksums", "texts")


def damaged(
    good: Path, folder: Path, seed: int, count: int, attacks: Sequence[Callable] | None = None
) -> Iterator[tuple[str, Path]]:
    """Yield what was done and the file, `count` times: each kind of damage in turn, at other places each time."""
    attacks = ATTACKS if attacks is None else attacks
    for number in range(count):
        chance = random.Random(f"{seed}:{number}")
        attack = attacks[number % len(attacks)]
        path = folder / f"{number}.h5"
        path.write_bytes(good.read_bytes())
        if attack in BYTES:
            attack(path, chance)
        else:
            with h5py.File(path, "r+") as file:
                attack(file, chance)
        yield f"{number}: {attack.__name__}", path


def some(file: h5py.File, chance: random.Random, *names: str) -> str:
    """Return one of the names that the file has."""
    return chance.choice([name for name in names if name in file])


# ---- bytes -------------------------------------------------------------------------------------------------------


def flip(path: Path, chance: random.Random, bits: int = 1) -> None:
    """Flip bits anywhere."""
    content = bytearray(path.read_bytes())
    for _ in range(bits):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def flip_several(path: Path, chance: random.Random) -> None:
    """Flip a handful of bits."""
    flip(path, chance, chance.randint(2, 9))


def flip_in_numbers(path: Path, chance: random.Random) -> None:
    """Flip a bit of a dataset."""
    with h5py.File(path) as file:
        place = file[some(file, chance, *ROWS, *STATE, *OTHERS)].id
        at = place.get_offset() + chance.randrange(place.get_storage_size())
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut_off(path: Path, chance: random.Random) -> None:
    """Leave the first part of the file."""
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))])


def blank(path: Path, chance: random.Random) -> None:
    """Overwrite a stretch with zeros, as a lost page of a disk does."""
    content = bytearray(path.read_bytes())
    start, size = chance.randrange(len(content)), chance.choice([512, 4096])
    content[start : start + size] = bytes(len(content[start : start + size]))
    path.write_bytes(content)


def nonsense(path: Path, chance: random.Random) -> None:
    """Put other bytes in place of the file."""
    path.write_bytes(
        chance.choice([b"", b"\x89HDF\r\n\x1a\n", chance.randbytes(5000), b"\x89HDF\r\n\x1a\n" + bytes(99)])
    )


# ---- names and links ---------------------------------------------------------------------------------------------


def without_name(file: h5py.File, chance: random.Random) -> None:
    """Remove a dataset or a group."""
    del file[some(file, chance, *ROWS, *STATE, *OTHERS, *GROUPS)]


def other_name(file: h5py.File, chance: random.Random) -> None:
    """Rename an energy, a number that was drawn or a text."""
    name = chance.choice(["energy/kinetic", "randomized/rod.youngs", "texts/scene", "energy"])
    file.move(name, f"{name}x")


def other_kind_of_thing(file: h5py.File, chance: random.Random) -> None:
    """Put a group in place of a dataset, or the other way round."""
    name = some(file, chance, *ROWS, *STATE, *OTHERS, *GROUPS)
    was_group = isinstance(file[name], h5py.Group)
    del file[name]
    if was_group:
        file[name] = 1.0
    else:
        file.create_group(f"{name}/inner")


def link_loop(file: h5py.File, chance: random.Random) -> None:
    """Let a name lead to itself, or to another one that leads back."""
    name = some(file, chance, *ROWS, *STATE, *OTHERS, *GROUPS)
    del file[name]
    file[name] = h5py.SoftLink(chance.choice([f"/{name}", "/loop"]))
    file["loop"] = h5py.SoftLink(f"/{name}")


def group_in_itself(file: h5py.File, chance: random.Random) -> None:
    """Link a group into itself."""
    name = some(file, chance, "energy", "randomized", "texts")
    file[f"{name}/inner"] = file[chance.choice([name, "/"])]


def soft_link(file: h5py.File, chance: random.Random) -> None:
    """Let a name stand for another place of the file."""
    name = some(file, chance, *ROWS, *STATE)
    file.move(name, "elsewhere")
    file[name] = h5py.SoftLink("/elsewhere")


def external_link(file: h5py.File, chance: random.Random) -> None:
    """Let a name stand for the same one of another file."""
    name = some(file, chance, *ROWS, *STATE, *GROUPS)
    with h5py.File(Path(file.filename).with_suffix(".other"), "w") as other:
        file.copy(name, other, name="target")
    del file[name]
    file[name] = h5py.ExternalLink(Path(file.filename).with_suffix(".other").name, "/target")


def external_storage(file: h5py.File, chance: random.Random) -> None:
    """Keep the numbers of a dataset in another file."""
    name = some(file, chance, *ROWS, *STATE)
    values = np.ascontiguousarray(file[name][()])
    if values.ndim == 0:
        name, values = "time", file["time"][()]
    other = Path(file.filename).with_suffix(".numbers")
    other.write_bytes(values.tobytes())
    del file[name]
    file.create_dataset(name, values.shape, values.dtype, external=[(str(other), 0, values.nbytes)])


def virtual(file: h5py.File, chance: random.Random) -> None:
    """Make a dataset a view of one in another file."""
    name = some(file, chance, *ROWS)
    values = file[name][()]
    source = Path(file.filename).with_suffix(".source")
    with h5py.File(source, "w") as other:
        other["values"] = values
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[:] = h5py.VirtualSource(source, "values", values.shape)
    del file[name]
    file.create_virtual_dataset(name, layout)


# ---- kinds and shapes --------------------------------------------------------------------------------------------


def replaced(file: h5py.File, name: str, values) -> None:
    """Put another dataset in place of one."""
    del file[name]
    file[name] = values


def wrong_kind(file: h5py.File, chance: random.Random) -> None:
    """Store the same numbers, or none, in a kind that was not expected."""
    name = some(file, chance, *ROWS, *STATE)
    values = file[name][()]
    texts = np.full(values.shape, "text", dtype=h5py.string_dtype())
    pairs = np.zeros(values.shape, dtype=[("a", float), ("b", int)])
    other = np.dtype(np.int64 if values.dtype.kind == "f" else np.float64)
    kinds = [values.astype(other, casting="unsafe"), values.astype(">f8"), values.astype("f2"), values.astype(complex)]
    replaced(file, name, chance.choice([*kinds, texts, pairs]))


def wrong_shape(file: h5py.File, chance: random.Random) -> None:
    """Leave out a part of a dataset, or add an axis."""
    name = some(file, chance, *ROWS, *STATE, *OTHERS[:-1])
    values = file[name][()]
    shapes = [values[None], values[..., None]] + ([values[:-1], values[1:, ...]] if values.ndim else [])
    replaced(file, name, chance.choice(shapes))


def zero_size(file: h5py.File, chance: random.Random) -> None:
    """Leave nothing: no rows, no robots or no nodes."""
    axis = chance.randrange(3)
    for name in ("positions", "velocities"):
        replaced(file, name, np.take(file[name][()], [], axis=axis))


def nothing_at_all(file: h5py.File, chance: random.Random) -> None:
    """Make a dataset of no shape at all."""
    replaced(file, some(file, chance, *ROWS, *STATE), h5py.Empty("f8"))


def huge(file: h5py.File, chance: random.Random) -> None:
    """Say that there are more numbers than there are atoms, without storing any."""
    name = some(file, chance, *ROWS)
    shape = file[name].shape
    del file[name]
    many = chance.choice([10**12, 10**18])
    file.create_dataset(name, (many, *shape[1:]), "f8" if name != "step" else "i8", chunks=(1, *shape[1:]))


def all_huge(file: h5py.File, chance: random.Random) -> None:
    """Say so of every dataset with an entry a row, so that they agree."""
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    for name in names:
        if not name.startswith(("state", "topology", "randomized", "texts", "checksums/fixed")):
            shape, dtype = file[name].shape, file[name].dtype
            del file[name]
            file.create_dataset(name, (10**11, *shape[1:]), dtype, chunks=(1, *shape[1:]))


# ---- numbers -----------------------------------------------------------------------------------------------------


def relabelled_state(file: h5py.File, chance: random.Random) -> None:
    """Say that the state is that of another step."""
    step = file["state/step"][()] + chance.choice([-1, 1, 10, 10**9])
    for copy in ("state", "state/backup"):
        file[f"{copy}/step"][()] = step


def other_state(file: h5py.File, chance: random.Random) -> None:
    """Move a robot in the last state."""
    robot, field = chance.randrange(file["state/q"].shape[0]), chance.choice(["q", "velocity", "director"])
    for copy in ("state", "state/backup"):
        file[f"{copy}/{field}"][robot] *= 1 + 1e-3


def torn_state(file: h5py.File, chance: random.Random) -> None:
    """Say that both copies were being written."""
    for copy in ("state", "state/backup"):
        file[f"{copy}/step"][()] = chance.choice([-1, -7])


def hole_in_time(file: h5py.File, chance: random.Random) -> None:
    """Take a time away, or put one that cannot be."""
    file["time"][chance.randrange(len(file["time"]))] = chance.choice([np.nan, np.inf, -1.0, 1e300])


def times_swapped(file: h5py.File, chance: random.Random) -> None:
    """Let time go backwards."""
    file["time"][()] = file["time"][()][::-1]


def wrong_step(file: h5py.File, chance: random.Random) -> None:
    """Count a row twice, or backwards."""
    file["step"][chance.randrange(1, len(file["step"]))] = chance.choice([-5, 0, 10**15])


def not_a_number(file: h5py.File, chance: random.Random) -> None:
    """Put NaN or an infinity where a number was."""
    values = file[chance.choice(["positions", "velocities", "twist", "energy/kinetic"])]
    values[chance.randrange(len(values)), 0] = chance.choice([np.nan, np.inf])


def other_number(file: h5py.File, chance: random.Random) -> None:
    """Change a number a little."""
    values = file[chance.choice(["positions", "twist", "randomized/rod.youngs"])]
    values[-1] = np.nextafter(values[-1], 1e9)


def unknown_status(file: h5py.File, chance: random.Random) -> None:
    """Say that a robot failed in a way that there is not."""
    file["newton/status"][-1] = chance.choice([-3, 99, 2**62])


def edges_of_no_nodes(file: h5py.File, chance: random.Random) -> None:
    """Let edges join nodes that there are not."""
    file["topology/rod_edges"][0] = chance.choice([-1, 10**6, 2**62])


BYTES = (flip, flip_several, flip_in_numbers, cut_off, blank, nonsense)
ATTACKS: tuple[Callable, ...] = (
    *BYTES,
    *(without_name, other_name, other_kind_of_thing, link_loop, group_in_itself, soft_link, external_link),
    *(external_storage, virtual, wrong_kind, wrong_shape, zero_size, nothing_at_all, huge, all_huge),
    *(relabelled_state, other_state, torn_state, hole_in_time, times_swapped, wrong_step, not_a_number),
    *(other_number, unknown_status, edges_of_no_nodes),
)
