"""How many recordings of the same steps there are, so that several threads can take parts of a batch side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchdismech.model import step_memory

if TYPE_CHECKING:
    from torchdismech.integrate.recorded.step_kind import BackwardPasses, StepKind

__all__ = ["side_by_side"]

# Steps of a part of a batch that replays take in the time in which one more recording is made. So more are made by and
# by: making them never takes longer than the replays so far.
STEPS_A_RECORDING = 64


def side_by_side(
    replayed: StepKind | BackwardPasses, kind: StepKind, parts: int, another: Callable[[], Any]
) -> list[Any]:
    """Return the recordings that take so many parts of a batch side by side, up to one for each of torch's threads.

    Those that are due are made now. Parts of half the size that "auto" chooses at least are large enough for threads,
    as it divides a batch evenly.

    Parameters
    ----------
    replayed : the steps, or backward passes, which have a first recording and maybe more for other threads.
    kind : of the steps.
    another : makes one more recording.
    """
    used = min(parts, torch.get_num_threads()) if kind.bytes_at_a_time >= step_memory.BYTES_A_THREAD / 2 else 1
    due = min(used - 1, replayed.replayed_steps // STEPS_A_RECORDING)
    # tensors that are made in inference mode could not be written to outside of it
    for _ in range(0 if torch.is_inference_mode_enabled() else due - len(replayed.more_recordings)):
        replayed.more_recordings.append(another())
    return [replayed.recording, *replayed.more_recordings[: used - 1]]
