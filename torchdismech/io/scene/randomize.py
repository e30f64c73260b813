"""[batch.randomize]: numbers of a scene drawn anew for each robot."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.io.scene.names import number_in_list, number_of_table, put
from torchdismech.io.scene.refusals import Key, field_at, naming, sentences
from torchdismech.io.schema.base import PER_ROBOT, is_marked
from torchdismech.io.schema.scene import Batch, Distribution, Document
from torchdismech.values import tensor_of

__all__ = ["Sampled", "draw", "with_draws"]

Sampled = Callable[[str, Distribution], Iterator[np.ndarray]]
ProblemOf = Callable[[float], str | None]  # why a scene would not accept a value in the place of a number
TRIES = 100  # most draws of a number, until the scene accepts one
# An interval is checked at two points this part of its length inside of its bounds, so that a bound may itself be a
# value that is not allowed, such as 0 for a positive number.
BOUND = 1e-9

WHY_NOT = {
    "simulation": "all robots of a batch take the same steps",
    "robot": "all robots of a batch share their geometry",
    "clamp": "all robots of a batch share their clamps, but for along and normal",
    "batch": "it belongs to the batch, not to a robot",
    "output": "all robots of a batch are stored together",
    "actuation": "a table of natural strains is the same for all robots; actuation.python can tell robots apart",
}


def with_draws(value: Any, draws: Mapping[Key, Tensor], key: Key = ()) -> Any:
    """Return the document, or what it has under a key, with the draws (B,) in their places.

    A number that is drawn becomes (B, 1), a vector of which a component is drawn (B, 3); all else stays as it is.
    """
    if key in draws:
        return draws[key][:, None]
    parts = dict.fromkeys(drawn[len(key)] for drawn in draws if drawn[: len(key)] == key)
    if isinstance(value, BaseModel):
        return value.model_copy(update={str(k): with_draws(getattr(value, str(k)), draws, (*key, k)) for k in parts})
    if not parts:
        return value
    entries = [with_draws(entry, draws, (*key, k)) for k, entry in enumerate(value)]
    if any(isinstance(entry, Tensor) for entry in entries):
        return torch.cat(torch.broadcast_tensors(*(tensor_of(x, torch.float64).reshape(-1, 1) for x in entries)), dim=1)
    return entries


def draw(path: Path, document: Document, raw: dict[str, Any], sampled: Sampled | None = None) -> dict[Key, Tensor]:
    """Draw the numbers (B,) that [batch.randomize] asks for, in its order, and return them by their keys.

    A robot draws the same numbers whatever the size of the batch, and whatever else is randomised. An interval is
    refused if the scene would not accept the values at its bounds, whether or not such a value is drawn.

    Parameters
    ----------
    path : the scene file, for messages.
    raw : the tables that `document` was made of.
    sampled : called with a dotted key and its distribution; yields draws (B,) in place of those by the batch's seed,
        and then further ones, which robots take whose draw the scene would not accept.
    """
    draws: dict[Key, Tensor] = {}
    for name, distribution in document.batch.randomize.items():
        where = f'batch.randomize."{name}"'
        with naming(path, where):
            key = _resolved(name, document)
            if key in draws:
                raise InputError("the same number is drawn under another name, too")
        problem_of = partial(_problem, document, raw, key)
        with naming(path, f"{where}.{distribution.kind}"):
            _refuse_bounds(distribution, problem_of)
            samples = _samples(key, distribution, document.batch, sampled or partial(_by_seed, document.batch))
        with naming(path, where):
            draws[key] = torch.from_numpy(_accepted(samples, problem_of))
    return draws


# ---- names -------------------------------------------------------------------------------------------------------


def _resolved(name: str, document: Document) -> Key:
    """Return the key that a dotted name stands for; the number of a table that stands alone may be left out."""
    key: list[str | int] = []
    value: Any = document
    table: BaseModel = document
    for part in name.split("."):
        so_far = ".".join(map(str, key))
        if isinstance(value, list) and value and isinstance(value[0], BaseModel):
            number = number_of_table(so_far, part, len(value))
            key.append(number or 0)
            value = value[number or 0]
            if number is not None:
                continue
        table = value if isinstance(value, BaseModel) else table
        entry_key, value = _entry(value, part, so_far)
        key.append(entry_key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"expected the name of one number of the scene, got {_kind(value)}")
    _check_per_robot(tuple(key), table)
    return tuple(key)


def _entry(value: Any, part: str, so_far: str) -> tuple[str | int, Any]:
    """Return the key or list index that the next part of a dotted name is, and the value there.

    Parameters
    ----------
    value : the table or list that the name has led to so far.
    so_far : the name so far, for messages.
    """
    if isinstance(value, list) and value:
        index = number_in_list(so_far, part, len(value))
        return index, value[index]
    if isinstance(value, list):
        raise InputError(f"there is no {so_far!r} in the scene to be drawn")
    inside = type(value).model_fields if isinstance(value, BaseModel) else {}
    present = [k for k in inside if getattr(value, k) is not None]
    if part not in present:
        if isinstance(value, Document):  # of the tables, those that are written
            present = [k for k in present if k in value.model_fields_set and getattr(value, k) != []]
        alternatives = f"; there are {', '.join(present)}" if present else ""
        raise InputError(f"there is no {part!r} in the scene to be drawn{alternatives}")
    return part, getattr(value, part)


def _kind(value: Any) -> str:
    if isinstance(value, BaseModel):
        return f"a table with {', '.join(type(value).model_fields)}"
    return f"a list of {len(value)}: add an index" if isinstance(value, list) else repr(value)


def _check_per_robot(key: Key, table: BaseModel) -> None:
    """Refuse to draw a number that all robots of a batch share."""
    field = field_at(Document, key)
    if field is None or not is_marked(field, PER_ROBOT):
        reason = WHY_NOT.get(str(key[0]), f"all robots of a batch share it; {_what_may(table)}")
        raise InputError(f"this number cannot differ from robot to robot: {reason}")


def _what_may(table: BaseModel) -> str:
    """Return which numbers of a table may differ from robot to robot, in words."""
    fields = type(table).model_fields
    names = [name for name, field in fields.items() if is_marked(field, PER_ROBOT) and getattr(table, name) is not None]
    return f"of this table these may differ: {', '.join(names)}" if names else "nothing of this table may differ"


# ---- numbers -----------------------------------------------------------------------------------------------------


def _samples(key: Key, distribution: Distribution, batch: Batch, sampled: Sampled) -> Iterator[np.ndarray]:
    """Return an iterator of draws (B,) of a number: its `values`, or what `sampled` yields."""
    if distribution.values is None:
        return sampled(".".join(map(str, key)), distribution)
    values = np.array(distribution.values, dtype=np.float64)
    if len(values) != batch.size:
        raise InputError(f"expected {batch.size} numbers (batch.size), got {len(values)}")
    return iter([values])


def _by_seed(batch: Batch, name: str, distribution: Distribution) -> Iterator[np.ndarray]:
    """Yield draws (B,) of a number, once; they depend on the seed, the number's key and the distribution alone."""
    random = np.random.default_rng([batch.seed, *name.encode()])
    if distribution.uniform is not None:
        low, high = distribution.uniform
        yield random.uniform(low, high, size=batch.size)
    elif distribution.loguniform is not None:
        low, high = np.log(distribution.loguniform).tolist()
        yield np.exp(random.uniform(low, high, size=batch.size))
    else:
        assert distribution.normal is not None
        mean, deviation = distribution.normal
        yield random.normal(mean, deviation, size=batch.size)


def _refuse_bounds(distribution: Distribution, problem_of: ProblemOf) -> None:
    """Refuse an interval whose bounds the scene would not accept as values, whatever is drawn from it."""
    ends = distribution.uniform or distribution.loguniform
    for bound, other in () if ends is None else (ends, ends[::-1]):
        inside = bound + BOUND * (other - bound)
        problem = problem_of(inside)
        if problem is not None:
            raise InputError(f"numbers near {bound:.6g} may be drawn: {problem}")


def _accepted(samples: Iterator[np.ndarray], problem_of: ProblemOf) -> np.ndarray:
    """Return draws (B,) of a number that the scene accepts: each robot's first that is accepted.

    So a robot's number does not depend on the other robots. Refused is a robot without such a draw among the samples,
    or the first `TRIES` of them.
    """
    values = next(samples)
    for tries in range(1, TRIES + 1):
        ends = {robot: problem_of(float(values[robot])) for robot in (values.argmin(), values.argmax())}
        wrong = [(robot, problem) for robot, problem in ends.items() if problem is not None]
        if not wrong:
            return values
        next_values = next(samples, None)
        if next_values is None or tries == TRIES:
            break
        rows = _refused(values, problem_of)
        values[rows] = next_values[rows]
    robot, problem = wrong[0]
    in_draw = f" in draw {tries}, as in all before" if tries > 1 else ""
    raise InputError(f"robot {robot} drew {values[robot]:.6g}{in_draw}: {problem}")


def _refused(values: np.ndarray, problem_of: ProblemOf) -> np.ndarray:
    """Return which draws (B,) the scene would not accept.

    Accepted numbers are taken to be an interval: values are tried from the smallest up and from the largest down, until
    one is accepted.
    """
    refused = np.zeros(len(values), dtype=bool)
    for order in (values.argsort(), values.argsort()[::-1]):
        for robot in order:
            if refused[robot] or problem_of(float(values[robot])) is None:
                break
            refused[robot] = True
    return refused


def _problem(document: Document, raw: dict[str, Any], key: Key, value: float) -> str | None:
    """Return why the scene would not accept a value in the place of a number; None if it would."""
    # the table that changes alone is copied: others may have the nodes of large robots
    trial = {name: copy.deepcopy(table) if name == key[0] else table for name, table in raw.items()}
    placed: Any = value
    *place, last = key
    if isinstance(last, int):  # of a vector, which is placed as a whole: the file may leave it at its default
        vector: Any = document
        for part in place:
            vector = vector[part] if isinstance(part, int) else getattr(vector, part)
        placed = [*vector[:last], value, *vector[last + 1 :]]
    else:
        place.append(last)
    put(trial, ".".join(map(str, place)), placed)
    try:
        Document.model_validate(trial)
    except ValidationError as error:
        return sentences(error, trial, Document)[0][1]
    return None
