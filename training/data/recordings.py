"""Recordings of one robot, ready to be compared with what a model predicts."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdismech.errors import InputError

__all__ = ["Recordings"]

NOTHING = torch.empty(0, device="cpu")
PER_RECORDING = ("positions", "valid", "inputs", "begins")  # tensors with a row for each recording
LONGEST_NAME = 300
MIN_FRAMES = 3  # two to start from, one to predict
SHORTEST_DT, LONGEST_DT = 1e-7, 1e4  # [s]
FARTHEST = 1e6  # [m] from the origin: beyond, differences between neighbours are lost in rounding


@dataclass(frozen=True)
class Recordings:
    """K recordings of the same robot, equally long.

    Attributes
    ----------
    positions : (K, T, N, 3) float64 of the nodes [m], z up; NaN where a marker was not seen (`prepared` fills these).
    dt : time between frames [s].
    names : one for each recording, all different: the file and the recording in it.
    valid : (K, T, N) bool, False where a marker was not seen or its place is repaired: losses leave these out.
    inputs : (K, T, C) float64, what was recorded along with the motion (angles of motors, pressures, ...), by default
        nothing; columns : names of the C columns of `inputs`.
    begins : (K,) time of the first frames [s], by default 0.
    edges : (E, 2) long, the nodes that each edge leads from and to, where the robot is a chain with branches: those of
        the chain 0, 1, 2, ... first, then those of branches, from a node that is reached already. By default nothing is
        said: the nodes are a chain, or markers of a robot that a scene describes.

    Raises
    ------
    InputError
        Shapes that do not fit, another dtype, an infinite or absurd value, fewer than three frames, a name that comes
        twice.
    """

    positions: Tensor
    dt: float
    names: tuple[str, ...]
    valid: Tensor
    inputs: Tensor = NOTHING
    columns: tuple[str, ...] = ()
    begins: Tensor = NOTHING
    edges: Tensor = NOTHING

    def __post_init__(self) -> None:
        shape = tuple(self.positions.shape)
        if len(shape) != 4 or shape[3] != 3:
            raise InputError(f"positions: expected the shape (recordings, frames, nodes, 3), got {shape}")
        if self.positions.dtype != torch.float64:
            raise InputError(f"positions: expected float64, got {self.positions.dtype}: convert them")
        if self.valid.shape != shape[:3] or self.valid.dtype != torch.bool:
            raise InputError(f"valid: expected bool {shape[:3]}, got {self.valid.dtype} {tuple(self.valid.shape)}")
        if self.inputs is NOTHING:
            object.__setattr__(self, "inputs", self.positions.new_zeros(*shape[:2], 0))
        if self.begins is NOTHING:
            object.__setattr__(self, "begins", self.positions.new_zeros(shape[0]))
        self._check_names()
        self._check_numbers()
        self._check_inputs()
        if self.branched:
            self._check_edges()

    def _check_edges(self) -> None:
        if self.edges.dtype != torch.int64 or tuple(self.edges.shape) != (self.nodes - 1, 2):
            raise InputError(
                f"edges: expected whole numbers ({self.nodes - 1}, 2), as {self.nodes} nodes without loops have, got "
                f"{self.edges.dtype} {tuple(self.edges.shape)}"
            )
        reached = {0}
        for k, (start, end) in enumerate(self.edges.tolist()):
            if start not in reached or end in reached or not 0 <= end < self.nodes:
                raise InputError(
                    f"edges: edge {k} from node {start} to {end}: expected one that leads from a node that is reached "
                    "already to one that is not, beginning at node 0"
                )
            reached.add(end)

    def _check_inputs(self) -> None:
        twice = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if twice:
            raise InputError(f"columns: {twice[0]!r:.80} comes twice; expected inputs of different names: rename one")
        expected = (*self.positions.shape[:2], len(self.columns))
        if tuple(self.inputs.shape) != expected or self.inputs.dtype != torch.float64:
            raise InputError(
                f"inputs: expected float64 {expected}, a number of each column in each frame, got {self.inputs.dtype} "
                f"{tuple(self.inputs.shape)}"
            )
        missing = (~self.inputs.isfinite()).nonzero()
        if len(missing):
            k, frame, column = missing[0].tolist()
            raise InputError(
                f"{self.names[k]}: column {self.columns[column]!r} has no number in frame {frame}; inputs have to "
                "cover the recording: fill it, or cut the recording there"
            )

    def _check_names(self) -> None:
        count = len(self.positions)
        if count == 0:
            raise InputError("no recordings: expected at least one; check the folder or the split")
        if len(self.names) != count:
            raise InputError(f"names: expected one for each of {count} recordings, got {len(self.names)}")
        odd = [name for name in self.names if not name.isprintable() or len(name) > LONGEST_NAME]
        if odd:
            raise InputError(
                f"names: expected at most {LONGEST_NAME} characters that can be printed, got {odd[0]!r:.80}: rename it"
            )
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise InputError(f"recordings of the same name: {', '.join(twice[:5])}; rename or leave out the second one")

    def _check_numbers(self) -> None:
        if not SHORTEST_DT <= self.dt <= LONGEST_DT:
            raise InputError(
                f"{self.names[0]}: dt: expected a positive number of seconds, from {SHORTEST_DT:g} to {LONGEST_DT:g}, "
                f"got {self.dt}"
            )
        if self.frames < MIN_FRAMES:
            raise InputError(
                f"{self.names[0]}: {self.frames} frames; expected at least {MIN_FRAMES}: two to start from, one to "
                "predict; leave this recording out"
            )
        if self.nodes < 1:
            raise InputError(f"{self.names[0]}: no markers; expected at least one")
        infinite = self.positions.isinf().nonzero()
        if len(infinite):
            k, frame, node, _ = infinite[0].tolist()
            raise InputError(
                f"{self.names[k]}: node {node} in frame {frame} is infinite; expected metres: write an empty cell or "
                "NaN where a marker was not seen"
            )
        far = (self.positions.abs() > FARTHEST).nonzero()
        if len(far):
            k, frame, node, axis = far[0].tolist()
            raise InputError(
                f"{self.names[k]}: node {node} in frame {frame} is {self.positions[k, frame, node, axis].item():.3g} m "
                f"away; expected metres, at most {FARTHEST:g}: convert them, or move the origin near the robot"
            )

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def frames(self) -> int:
        """Number of frames T of each recording."""
        return self.positions.shape[1]

    @property
    def nodes(self) -> int:
        """Number of nodes N."""
        return self.positions.shape[2]

    @property
    def branched(self) -> bool:
        """Whether the nodes are those of a chain with branches, whose `edges` are given."""
        return bool(self.edges.numel())

    @property
    def rod_edges(self) -> Tensor:
        """The edges (E, 2): those that are given, or those of a chain."""
        ends = torch.arange(1, self.nodes, device="cpu")
        return self.edges if self.branched else torch.stack([ends - 1, ends], dim=1)

    def digests(self) -> dict[str, str]:
        """Return a checksum of each recording by name, over all its numbers: positions, valid, dt, inputs and so on."""
        found = {}
        for k, name in enumerate(self.names):
            digest = hashlib.sha256(f"{self.dt!r} {tuple(self.positions.shape[1:])}".encode())
            digest.update(self.positions[k].contiguous().numpy().tobytes())
            digest.update(self.valid[k].contiguous().numpy().tobytes())
            if self.columns:
                digest.update(f"{self.columns}".encode() + self.inputs[k].contiguous().numpy().tobytes())
            if self.branched:
                digest.update(f"edges {self.edges.tolist()}".encode())
            if self.begins[k]:
                digest.update(f"from {self.begins[k].item()!r}".encode())
            found[name] = digest.hexdigest()
        return found

    def subset(self, index) -> Recordings:
        """Return some of the recordings.

        Parameters
        ----------
        index : which of the K recordings: a number, a slice, a list of numbers, or a (K,) bool tensor.
        """
        try:
            chosen = torch.arange(len(self), device="cpu")[index].reshape(-1)
        except IndexError as error:
            raise InputError(f"subset: there are {len(self)} recordings, got {index}: {error}") from error
        names = tuple(self.names[k] for k in chosen.tolist())
        return dataclasses.replace(self, names=names, **{name: getattr(self, name)[chosen] for name in PER_RECORDING})

    def followed_by(self, others: Recordings) -> Recordings:
        """Return these recordings followed by others of the same robot, equally long and with the same inputs."""
        tensors: dict[str, Any] = {
            name: torch.cat([getattr(self, name), getattr(others, name)]) for name in PER_RECORDING
        }
        return dataclasses.replace(self, names=(*self.names, *others.names), **tensors)

    def pieces(self, seconds: float) -> Recordings:
        """Return the recordings cut into equal pieces of so many seconds.

        The remainder at the end of each is dropped, and so are pieces in which no marker was seen.

        Parameters
        ----------
        seconds : of each piece, at least three frames and at most a whole recording.
        """
        frames = round(seconds / self.dt)
        count = self.frames // frames if frames >= MIN_FRAMES else 0
        if not count:
            raise InputError(
                f"pieces: expected {MIN_FRAMES * self.dt:g} s to {self.frames * self.dt:g} s, as {self.names[0]} has, "
                f"got {seconds:g} s"
            )

        def cut(whole: Tensor) -> Tensor:
            return whole[:, : count * frames].unflatten(1, (count, frames)).flatten(0, 1)

        starts = self.dt * frames * torch.arange(count, dtype=torch.float64, device="cpu")
        begins = (self.begins[:, None] + starts).flatten()
        names = tuple(f"{name} from {start:.6g} s" for name in self.names for start in starts.tolist())
        positions, valid, inputs = cut(self.positions), cut(self.valid), cut(self.inputs)
        parts = dataclasses.replace(self, positions=positions, valid=valid, inputs=inputs, names=names, begins=begins)
        return parts.subset(valid.flatten(1).any(1))

    def split(self, fraction: float, seed: int) -> tuple[Recordings, Recordings]:
        """Return the recordings to train on and those to hold out, at least one each; the seed alone decides which.

        Whole recordings are held out, as neighbouring frames are too alike to test on. With a fraction of 0 all are
        trained on, and the same object is returned in place of those held out.

        Parameters
        ----------
        fraction : the share to hold out, from 0, and less than 1.
        seed : seed of the random choice.
        """
        if not 0 <= fraction < 1:
            raise InputError(f"fraction to hold out: expected a number from 0 and less than 1, got {fraction}")
        if fraction == 0:
            return self, self
        if len(self) < 2:
            raise InputError(
                "one recording is too few to hold out a share of them: record more, cut it into pieces by data.pieces, "
                "or hold out none by data.held_out = 0"
            )
        held = min(max(round(fraction * len(self)), 1), len(self) - 1)
        drawn = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed), device="cpu")
        return self.subset(drawn[held:].sort().values), self.subset(drawn[:held].sort().values)
