"""What a resumed run has to know of the run before: its progress, its random state, and its config and data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from torchdismech import InputError
from training.config import Config
from training.options import faults
from training.system import refuse_another_kind, refuse_unlike

__all__ = ["Before", "Progress", "differences", "random_state", "read_facts", "state_of_adam", "take_random_state"]

ADAM = ("step", "exp_avg", "exp_avg_sq")  # torch's names of Adam's state of a parameter
MAY_CHANGE = ("name", "logging", "data.path")  # fields that change no result; recordings are compared by checksums
SHOWN = 4  # differences in one message

Count = Annotated[int, Field(ge=0, lt=2**53)]


class Plain(BaseModel):
    """A table of a checkpoint's facts; checkpoints may come from anywhere, so unknown fields and types are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Progress(Plain):
    """Progress of a fit; all of it goes into checkpoints.

    Attributes
    ----------
    stage, iteration : index of the stage, and batches done in it; total : batches done in all stages.
    best : error of the best weights, a mean over the held-out recordings that are predicted to their end, or over all
        if none is.
    best_failed : number of held-out recordings that the best weights do not predict to their end.
    best_at : batches before the best weights, over all stages; looks_since : looks at held-out recordings since then.
    skipped : batches that left the weights as they were; unconverged : windows of which a step failed.
    seconds : time spent on batches.
    reported : whether the results of all stages are in the run's files and on its board.
    """

    stage: Count = 0
    iteration: Count = 0
    total: Count = 0
    best: float = Field(math.inf, ge=0)
    best_failed: Count = 0
    best_at: Count = 0
    looks_since: Count = 0
    skipped: Count = 0
    unconverged: Count = 0
    seconds: float = Field(0.0, ge=0, allow_inf_nan=False)
    reported: bool = False


class SamplerState(Plain):
    """Position in the sequence of a stage's windows; see `WindowSampler.state_dict`."""

    drawn: Count
    seed: Count
    batch: Count
    steps: Annotated[int, Field(ge=1, lt=2**31)]
    windows: Count


Evaluation = tuple[
    Annotated[int, Field(ge=1, lt=2**31)],
    Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,3})?)$")],
    Literal["float32", "float64"],
    Annotated[float, Field(ge=0, allow_inf_nan=False)] | Count,
    bool,
]


class Before(Plain):
    """The facts of the checkpoint "last": the state of the run before, beside its tensors.

    Attributes
    ----------
    sampler : position in the sequence of windows; None where none was drawn in this stage.
    running : whether a stage by Adam had begun, so that there is an optimiser.
    evaluations : counts of the model's evaluations, as `torchdismech.compilation` keeps them.
    config, recordings, files : what the run was made of: the config's fields, and a checksum of each recording and of
        each file that the config names.
    """

    progress: Progress
    sampler: SamplerState | None
    running: bool
    evaluations: list[Annotated[Evaluation, Field(strict=False)]]
    config: dict[str, Any]
    recordings: dict[str, str]
    files: dict[str, str] = {}


def read_facts(facts: Mapping[str, Any], folder: Path) -> Before:
    """Return the facts of a checkpoint, checked."""
    try:
        return Before.model_validate(facts)
    except ValidationError as error:
        raise InputError(
            f"{folder}: its checkpoint holds what no fit writes: {faults(error, dict(facts), Before)}"
        ) from error


def differences(before: Before, config: Config, recordings: Mapping[str, str], files: Mapping[str, str]) -> list[str]:
    """Return how a resumed run would differ from the run before, in a few words for each field, file and recording."""
    then, now = dict(_leaves(before.config)), dict(_leaves(config.model_dump(mode="json")))
    fields = sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
    fields = [key for key in fields if not key.startswith(MAY_CHANGE)]
    found = [f"{key} was {_shown(then, key)} and is {_shown(now, key)}" for key in fields]
    changed_files = sorted(key for key in before.files.keys() | files.keys() if before.files.get(key) != files.get(key))
    found += [f"the file of {key} is another one" for key in changed_files]
    found += _other_recordings(before.recordings, recordings)
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return [*found[:SHOWN], *more]


def _other_recordings(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return how recordings differ from those of the run before; both are checksums by name."""
    if list(old.values()) == list(new.values()):  # the same numbers in the same order: files may be renamed
        return []
    found = [f"the recording {name!r:.80} is gone" for name in old if name not in new]
    found += [f"the recording {name!r:.80} is new" for name in new if name not in old]
    changed = [name for name in old if name in new and old[name] != new[name]]
    found += [f"the recording {name!r:.80} has other numbers" for name in changed]
    # which ones are held out follows from the order
    return found or ["the recordings stand in another order"]


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables and lists by dotted keys."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if not inner:
        yield key, value
        return
    for name, item in inner:
        yield from _leaves(item, f"{key}.{name}" if key else str(name))


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    return f"{leaves[key]!r:.60}" if key in leaves else "not given"


def state_of_adam(tensors: Mapping[str, Tensor], name: str, parameter: Tensor, folder: Path) -> dict[str, Tensor]:
    """Return Adam's state of a parameter from the tensors of a checkpoint; {} where it has none.

    Raises
    ------
    InputError
        A part of the state is missing, has another shape, or holds numbers that Adam never has.
    """
    state = {key: tensors[f"optimizer/{key}/{name}"] for key in ADAM if f"optimizer/{key}/{name}" in tensors}
    if not state:
        return {}
    if len(state) < len(ADAM):
        raise InputError(f"{folder}: its checkpoint has only {', '.join(state)} of the optimiser on {name}")
    for key, value in state.items():
        like = value.new_zeros((), dtype=torch.float32) if key == "step" else parameter
        refuse_unlike(value, like, f"{folder}: {key} of the optimiser on {name} in its checkpoint")
    if bool((state["step"] < 1) | (state["exp_avg_sq"] < 0).any()):
        raise InputError(f"{folder}: its checkpoint holds what no optimiser writes on {name}")
    return {"step": state["step"], **{key: state[key].to(parameter.device) for key in ADAM[1:]}}


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of torch's random generators, which users' modules may draw from, by names in checkpoints."""
    found = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["random/cuda"] = torch.cuda.get_rng_state(device)
    return found


def take_random_state(tensors: Mapping[str, Tensor], device: torch.device, folder: Path) -> None:
    """Restore torch's random generators from a checkpoint; a GPU's stays as it is if that was written without one."""
    if "random/cpu" not in tensors:
        raise InputError(
            f"{folder}: its checkpoint has no 'random/cpu': it was written by an earlier version: begin anew in "
            "another --out"
        )
    for name, now in random_state(device).items():
        if name in tensors:
            refuse_another_kind(tensors[name], now, f"{folder}: {name} in its checkpoint")
    try:
        torch.set_rng_state(tensors["random/cpu"])
        if device.type == "cuda" and "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"], device)
    except RuntimeError as error:
        raise InputError(f"{folder}: its checkpoint holds random numbers that torch does not take: {error}") from error
