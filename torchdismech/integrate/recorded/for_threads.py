"""How many recordings of the same steps there are, so that several threads can take parts of a batch side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from torchdismech.model import step_memory

if TYPE_CHECKING:
    from torchdismech.integrate.recorded.step_kind import StepKind

__all__ = ["Replayed", "missing_recordings", "used_recordings"]

# Steps of a part of a batch that replays take in the time in which one more recording is made. So more are made by and
# by: making them never takes longer than the replays so far.
STEPS_A_RECORDING = 64


class Replayed(Protocol):
    """Steps, or backward passes, that several recordings take: the first one, and more for other threads."""

    more_recordings: list[Any]
    replayed_steps: int


def used_recordings(kind: StepKind, parts: int) -> int:
    """Return how many recordings of a kind of steps take this many parts of a batch side by side.

    Parts of half the size that "auto" chooses at least are large enough, as it divides a batch evenly.
    """
    return min(parts, torch.get_num_threads()) if kind.bytes_at_a_time >= step_memory.BYTES_A_THREAD / 2 else 1


def missing_recordings(replayed: Replayed, kind: StepKind, parts: int) -> int:
    """Return how many recordings are to be made now, beside those that there are; none in inference mode.

    Tensors that are made in inference mode could not be written to outside of it.
    """
    if torch.is_inference_mode_enabled():
        return 0
    due = min(used_recordings(kind, parts) - 1, replayed.replayed_steps // STEPS_A_RECORDING)
    return max(0, due - len(replayed.more_recordings))
