"""Short windows of recordings, for losses that start anew in many places (multiple shooting)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError
from training.data.recordings import Recordings

__all__ = ["Window", "WindowSampler", "Windows", "frames_about", "gather", "windows"]


@dataclass(frozen=True)
class Window:
    """B windows of recordings, of F frames each: what a system predicts from, and is compared with.

    Attributes
    ----------
    positions : (B, F, M, 3) of the markers [m]; valid : (B, F, M) bool, where they were seen.
    inputs : (B, F, C) what was recorded along with the motion.
    time : (B,) of the first frames [s].
    history : (B, ...) by name, what the system knows of the motion before (see `System.history`).
    start : (B, S) fitted start of each window (see `System.start_size`); None without.
    """

    positions: Tensor
    valid: Tensor
    inputs: Tensor
    time: Tensor
    history: Mapping[str, Tensor] = field(default_factory=dict)
    start: Tensor | None = None

    @property
    def frames(self) -> int:
        """Number of frames F."""
        return self.positions.shape[1]

    def to(self, device: torch.device) -> Window:
        """Return the windows on a device."""
        return self.mapped(lambda tensor: tensor.to(device))

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Window:
        """Return the windows with each tensor replaced by that which a function makes of it."""
        tensors = {name: function(getattr(self, name)) for name in ("positions", "valid", "inputs", "time")}
        history = {name: function(value) for name, value in self.history.items()}
        return Window(**tensors, history=history, start=None if self.start is None else function(self.start))

    def replace(self, **changes: Any) -> Window:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class Windows:
    """The starts of W windows, each with `steps` to predict after the frames to start from.

    Attributes
    ----------
    recording, first : (W,) long, the recording of each window and the frame in which it begins.
    steps : number of frames to predict.
    """

    recording: Tensor
    first: Tensor
    steps: int

    def __len__(self) -> int:
        return len(self.first)


def windows(
    recordings: Recordings,
    steps: int,
    stride: int | None = None,
    given: int = 2,
    measured: bool = True,
    anywhere: bool = True,
) -> Windows:
    """Return the windows of all recordings, in order, without those in which no marker is seen after the start.

    Parameters
    ----------
    steps : number of frames to predict.
    stride : frames from one start to the next in a recording; None: windows start at every frame.
    given : number of frames to start from: two for positions and velocities.
    measured : whether windows start only where all nodes are valid in these, as a wrong start would spoil the rest.
    anywhere : whether windows start anywhere in a recording, not only at its first frame.
    """
    stride = 1 if stride is None else stride
    if steps < 1 or stride < 1:
        raise InputError(f"windows: expected steps and stride of at least 1, got {steps} and {stride}")
    starts = recordings.frames - steps - given + 1
    if starts < 1:
        raise InputError(
            f"windows: {steps} steps need {steps + given} frames and the recordings have {recordings.frames}: "
            "take fewer steps"
        )
    usable = recordings.valid.any(-1)[:, given:].unfold(1, steps, 1).any(-1)
    if measured:
        usable = usable & recordings.valid.all(-1).unfold(1, given, 1).all(-1)[:, :starts]
    usable = usable[:, : starts if anywhere else 1 : stride]
    recording, place = usable.nonzero(as_tuple=True)
    if not len(place):
        needed = (
            "no two neighbouring frames at a start of a window are valid in all nodes, with a"
            if measured
            else "there is no"
        )
        raise InputError(
            f"windows: {needed} marker that is seen in the {steps} frames after it: take another stride or better "
            "recordings"
        )
    return Windows(recording, place * stride, steps)


def frames_about(time: float, dt: float, frames: int) -> tuple[int, int, float]:
    """Return the frames before and after a time [s] since the first one, and the share of the way between them.

    Before the first and after the last of so many frames, `dt` [s] apart, both are that one.
    """
    place = min(max(time / dt, 0.0), frames - 1.0)
    before = int(place + 1e-6)  # k dt is off by rounding
    return before, min(before + 1, frames - 1), place - before if place - before > 1e-6 else 0.0


class WindowSampler:
    """An endless iterator of batches of windows, shuffled anew in each epoch by the seed alone.

    Several ranks draw the same global batch and each returns its contiguous part: together they see what one rank
    alone would. A batch may reach into the next epoch, so none is short.

    Parameters
    ----------
    windows : to draw from.
    batch : size of the global batch; `world` must divide it.
    seed : of the order.
    rank, world : index of this process among how many.
    """

    def __init__(self, windows: Windows, batch: int, seed: int, rank: int = 0, world: int = 1):
        if batch < 1 or seed < 0:
            raise InputError(f"WindowSampler: expected batch >= 1 and seed >= 0, got {batch} and {seed}")
        if not 0 <= rank < world:
            raise InputError(f"WindowSampler: expected rank in 0 .. world - 1, got rank {rank} of {world}")
        if batch % world:
            raise InputError(
                f"WindowSampler: the global batch {batch} does not divide among {world} ranks: take a multiple"
            )
        self.windows, self.batch, self.seed, self.rank, self.world = windows, batch, seed, rank, world
        self._drawn = 0  # windows drawn so far, over all ranks
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.long, device="cpu")

    def __iter__(self) -> WindowSampler:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        """Return recording and first frame of this rank's windows, (batch / world,) each."""
        own = self.batch // self.world
        start = self._drawn + self.rank * own
        chosen = torch.stack([self._window(place) for place in range(start, start + own)])
        self._drawn += self.batch
        return self.windows.recording[chosen], self.windows.first[chosen]

    def _window(self, place: int) -> Tensor:
        """Return the index () of the window at a place in the endless sequence."""
        epoch, within = divmod(place, len(self.windows))
        if epoch != self._epoch:
            # SeedSequence mixes the two, so that seed 0 in epoch 1 differs from seed 1 in epoch 0
            mixed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1, np.uint64)[0] >> np.uint64(1))
            generator = torch.Generator().manual_seed(mixed)
            self._epoch, self._order = epoch, torch.randperm(len(self.windows), generator=generator, device="cpu")
        return self._order[within]

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the sequence, the same for all ranks and for any number of them."""
        return {"drawn": self._drawn, **self._sequence()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position; refuse that of another sequence."""
        for name, own in self._sequence().items():
            if state[name] != own:
                raise InputError(
                    f"WindowSampler: the saved state has {name} {state[name]}, this one {own}: use the same"
                )
        self._drawn = state["drawn"]

    def _sequence(self) -> dict[str, int]:
        """Return the numbers that decide the sequence."""
        return {
            "seed": self.seed,
            "batch": self.batch,
            "steps": self.windows.steps,
            "windows": len(self.windows),
        }


def gather(recordings: Recordings, recording: Tensor, first: Tensor, frames: int) -> Window:
    """Return the windows of recordings that begin at some frames.

    Parameters
    ----------
    recording, first : (b,) long, the recording of each window and the frame in which it begins.
    frames : number of frames of each window.
    """
    if frames < 1 or not 0 <= int(first.min()) <= int(first.max()) <= recordings.frames - frames:
        raise InputError(
            f"gather: windows of {frames} frames that start at {int(first.min())} .. {int(first.max())} do not fit "
            f"into recordings of {recordings.frames} frames"
        )
    places = recording[:, None], first[:, None] + torch.arange(frames, device=first.device)
    return Window(
        recordings.positions[places],
        recordings.valid[places],
        recordings.inputs[places],
        recordings.begins[recording] + recordings.dt * first,
    )
