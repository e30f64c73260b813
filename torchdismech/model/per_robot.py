"""Checks of what users' modules declare in `per_robot`, and hints at tensors that are missing there."""

from __future__ import annotations

from torch import Tensor, nn

from torchdismech.errors import InputError
from torchdismech.origin import class_name, is_of_user
from torchdismech.values import every_module

__all__ = ["hint_of_robots", "refuse_misnamed"]


def refuse_misnamed(module: nn.Module) -> None:
    """Refuse names in `per_robot` that are plain attributes, or that a module does not have."""
    for part in every_module(module):
        names = getattr(part, "per_robot", ())
        if isinstance(names, str):
            raise InputError(
                f"{class_name(part)}: per_robot is the text {names!r}; write ({names!r},), a tuple of names"
            )
        for name in names:
            if not hasattr(part, name):
                raise InputError(
                    f"{class_name(part)}: per_robot names {name!r}, which it does not have; it has "
                    f"{', '.join(_own_names(part)) or 'no tensors'}"
                )
            if isinstance(vars(part).get(name), Tensor):
                raise InputError(
                    f"{class_name(part)}.{name}: named in per_robot, but it is neither a parameter nor a buffer; "
                    "set it by nn.Parameter or register_buffer"
                )


def _own_names(module: nn.Module) -> list[str]:
    """Return the names of a module's own public parameters and buffers."""
    return [name for own in (module._parameters, module._buffers) for name in own if not name.startswith("_")]


def hint_of_robots(module: nn.Module, trials: int) -> str:
    """Return sentences for messages about users' tensors that seem to be per robot, but are not declared or shaped so.

    `trials` is the number of robots in the trial.
    """
    unnamed, flat = [], []
    for part in every_module(module):
        if not is_of_user(part):
            continue
        own = {**vars(part), **part._parameters, **part._buffers}
        known = set(getattr(part, "per_robot", ()))
        for name, value in own.items():
            if not isinstance(value, Tensor) or name.startswith("_"):
                continue
            said = f"{class_name(part)}.{name} {tuple(value.shape)}"
            if name in known and value.dim() == 1 and len(value) > 1:
                flat.append(f"{said}, which would be {(len(value), 1)}")
            elif name not in known and value.dim() > 1 and value.shape[0] not in (1, trials):
                unnamed.append(said)
    hint = ""
    if any(getattr(part, "runs_users_code", False) for part in every_module(module)):
        hint += (
            " A function of time is asked for any number of robots, each with its own time; fields of single robots "
            "are a Table(times, values (T, B, 3)), or set by Control(values=...)"
        )
    if unnamed:
        hint += (
            " Batches are evaluated by parts: a tensor of single robots (first dimension) has to be a parameter or "
            f"buffer and be named in the class attribute per_robot; there is {', '.join(unnamed)}"
        )
    if flat:
        hint += (
            " A tensor named in per_robot that has a row for each robot is (B, ...), of two dimensions or more; one of "
            f"fewer is the same for all robots; there is {'; '.join(flat)}"
        )
    return hint
