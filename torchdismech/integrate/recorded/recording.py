"""Whether a step is recorded, and the recording that takes it: some tens of calls a step instead of thousands.

Eager steps spend their time in Python, not in arithmetic. So once some eager steps of a kind were taken, the next ones
are replayed: on a GPU as CUDA graphs, on a CPU, where robots are few, as tapes (`native/tape.py`). Compiled steps on a
GPU are recorded from the first one on.

A replay works on the memory that was recorded, without running any Python. So everything that a step reads has to be in
one of three groups, or the replay would use outdated numbers:

- *inputs*, copied before each step to the static buffers (tensors at fixed addresses) that the recording reads: state,
  loads, control, which rows run, dt, and all of the model's tensors that may be replaced before the next step: those
  that may be given per robot (a part of a batch has its own), those that a control sets, and those that
  `torch.nn.utils.parametrize` computes;
- *captured constants*: the model's other tensors (topology, tables of sums, maps), known by their addresses and shapes
  and kept alive; and the plain numbers in the attributes of its modules and of the integrator. A step with other
  constants is of another kind (`step_kind.py`), with a recording of its own;
- *results* of the recording itself.

External forces that do not change within a step run outside of the recording, as they may be any code, and it is given
their sum; on a CPU they are recorded, too, where all are the library's own or say `records` (`declared.py`). Forces
that change within a step are recorded if they are the library's own or say `records`. A user's elastic term is recorded
on a CPU if it says `records`; one that is recorded on a GPU may read its own tensors and plain numbers, nothing else
that changes. Contact with obstacles is recorded where it is a force (on a GPU not with meshes, whose search for the
nearest triangle reads numbers on the host). Whether a node passed through an obstacle is not recorded: it is checked
afterwards, in the few steps in which one may have.

`recordable.py` says what of a model recordings can hold. Most steps are recorded as a whole (`step.py`). Where parts of
a robot may touch, where contacts are constraints, where the linear solver reads numbers on the host, and where robots
come to rest (`Static`), a CPU records functions of the equations (`evaluations.py`) and Newton iterations
(`round_tapes.py`), and the rest of the step runs in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdismech.errors import InputError, warn
from torchdismech.fused import compiled_code_accepts, traced
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.evaluations import RecordedEvaluations
from torchdismech.integrate.recorded.for_threads import side_by_side
from torchdismech.integrate.recorded.recordable import (
    declared,
    has_own_terms,
    is_recordable_method,
    why_code_unrecorded,
    why_evaluations_unrecorded,
    why_steps_unrecorded,
)
from torchdismech.integrate.recorded.static_problem import warn_of_memory
from torchdismech.integrate.recorded.step import RecordedStep
from torchdismech.integrate.recorded.step_kind import StepKind
from torchdismech.model import Model
from torchdismech.native import function_of
from torchdismech.native.graphs import Unrecordable
from torchdismech.origin import class_name
from torchdismech.system.plain import in_plain_torch
from torchdismech.values import evaluated, every_module

if TYPE_CHECKING:
    from torchdismech.integrate.integrator import SteppingMethod

__all__ = [
    "kind_of",
    "recording_of",
    "recordings_for_threads",
    "records_eager_steps",
    "records_whole_steps",
]

KINDS_KEPT = 8  # kinds of steps of a model: batch sizes, kinds of controls, integrators; each has buffers for a step
STEPS_BEFORE_RECORDING = 12  # eager steps of a kind before it is recorded, which takes about as long as these
LEFT_AT_MOST = 0.25  # of the steps that recordings begin, for several threads to take steps
MAX_NUMBERS = 60_000  # numbers in q of all robots up to which steps on a CPU are recorded: with more, memory counts


def kind_of(problem: StepProblem) -> StepKind | None:
    """Return the kind that a step belongs to, a new one if the model has none that fits; None if it is never recorded.

    The model keeps the kinds that served last.
    """
    q = problem.state.q
    if (q.is_cpu and not compiled_code_accepts(q)) or ((q.is_cpu or q.is_cuda) and traced()):
        return None  # torch's operations are watched or transformed, which a replay would bypass
    if problem.load_factor != 1:
        return None  # a share of a load is seldom taken again, and each would be a kind of its own
    if (problem.snapshot is not None and problem.snapshot.hooked) or torch.nn.modules.module._has_any_global_hook():
        return None  # a replay would not call the hooks of modules
    kinds: list[StepKind] = problem.model.recordings
    if kinds and kinds[0].fits(problem):
        return kinds[0]
    wait = _steps_before(problem)
    if wait is None:
        return None
    for place, kind in enumerate(kinds[1:], 1):
        if kind.fits(problem):
            kinds.insert(0, kinds.pop(place))  # the one that served last comes first
            return kind
    kinds.insert(0, StepKind(problem, wait))
    del kinds[KINDS_KEPT:]
    return kinds[0]


def recording_of(kind: StepKind, problem: StepProblem) -> RecordedStep | RecordedEvaluations | None:
    """Return the recording that takes a step of a kind, with the step started; None if Python has to take it.

    The recording is made here once enough steps of the kind were taken without one.
    """
    if kind.recording is None:
        # tensors that are made in inference mode could not be written to outside of it
        if kind.unrecorded_steps < kind.wait or kind.refused or torch.is_inference_mode_enabled():
            return None
        try:
            whole = problem.method.scheme.inertial and why_steps_unrecorded(problem.model) is None
            kind.recording = RecordedStep(kind, problem) if whole else RecordedEvaluations(kind, problem)
        except Unrecordable as error:
            if problem.state.q.is_cuda:
                raise  # checked before, so a user's force has promised `records` wrongly
            kind.refused = True  # some operation reads numbers on the host
            if kind.of_users:
                _warn_of_promise(problem.model, error)
            return None
        except torch.OutOfMemoryError:
            if _compiled_on_a_gpu(problem.model, problem.state.q):
                raise
            kind.refused = True
            warn_of_memory("steps")
            return None
        _refuse_changing(kind, problem)
    recording: RecordedStep | RecordedEvaluations = kind.recording
    recording.start(kind.inputs(problem), problem)
    return recording


def recordings_for_threads(kind: StepKind, problem: StepProblem, parts: int) -> list[RecordedStep]:
    """Return the recordings of whole steps of a kind, up to one for each of torch's threads.

    Where many steps leave their recordings it is one, as threads would wait for each other: one at a time runs Python.

    Parameters
    ----------
    problem : a step of the kind, its values in place.
    parts : number of parts of the batch that are still to be stepped.
    """
    if kind.left_steps > LEFT_AT_MOST * kind.replayed_steps:
        return [kind.recorded_step]
    return side_by_side(kind, kind, parts, lambda: RecordedStep(kind, problem))


def _refuse_changing(kind: StepKind, problem: StepProblem) -> None:
    """Refuse users' code that says `records` but is changed by its own evaluation, so that no later step would fit."""
    if kind.of_users and not kind.fits(problem):
        raise InputError(
            f"{_names_of_declared(problem.model)}: says `records`, but tensors, attributes or modules change when it "
            "is evaluated; leave `records` out, or make it a function of the state"
        )


def _warn_of_promise(model: Model, error: Unrecordable) -> None:
    """Warn of forces that say `records` and cannot be recorded."""
    warn(
        f"{_names_of_declared(model)}: says `records`, but no recording holds it, so steps go on without one, slower: "
        f"{error}; leave `records` out, or make it of operations on tensors alone",
        RuntimeWarning,
    )


def _names_of_declared(model: Model) -> str:
    return ", ".join(dict.fromkeys(class_name(owner) for owner in declared(model)))


def records_eager_steps(model: Model, method: SteppingMethod, q: Tensor) -> bool:
    """Return whether eager steps of these robots, at q (B, n), are recorded, so that compiling them gains little.

    On a CPU this needs the library's compiled code: what torch does in its place reads numbers, which no tape holds.
    """
    if model.device.type == "cpu" and function_of("calls_in_turn") is None:
        return False
    with evaluated(every_module(model)).in_place():
        return (_eager_on_a_cpu(model, q) or _eager_on_a_gpu(model, q)) and _recordable(model, method)


def records_whole_steps(model: Model, method: SteppingMethod) -> bool:
    """Return whether whole steps of these robots are recorded as tapes, if few robots are stepped at a time."""
    if model.device.type != "cpu" or model.compilation.runs_compiled(1, model.nodes):
        return False
    with torch.no_grad(), evaluated(every_module(model)).in_place():
        recorded = why_code_unrecorded(model) is None and _recordable(model, method)
        return recorded and method.scheme.inertial and why_steps_unrecorded(model) is None


def _steps_before(problem: StepProblem) -> int | None:
    """Return how many steps of a kind are taken before they are recorded; None if they are never recorded."""
    model, q = problem.model, problem.state.q
    if _compiled_on_a_gpu(model, q):
        wait = 0
    elif _eager_on_a_gpu(model, q) or _eager_on_a_cpu(model, q):
        wait = STEPS_BEFORE_RECORDING
    else:
        return None
    return wait if _recordable(model, problem.method) else None


def _recordable(model: Model, method: SteppingMethod) -> bool:
    if in_plain_torch():
        return False
    whole_steps_alone = model.device.type != "cpu"
    if whole_steps_alone and not method.scheme.inertial:
        return False
    why_not = why_steps_unrecorded(model) if whole_steps_alone else why_evaluations_unrecorded(model)
    return is_recordable_method(method) and why_not is None


def _compiled_on_a_gpu(model: Model, q: Tensor) -> bool:
    """Return whether steps of robots with q (B, n) run as code that torch.compile makes for a GPU."""
    return q.is_cuda and model.compilation.runs_compiled(q.shape[0], q)


def _eager_on_a_gpu(model: Model, q: Tensor) -> bool:
    """Return whether steps of robots with q (B, n) run eagerly on a GPU, with only the library's elastic terms."""
    return q.is_cuda and not model.compilation.runs_compiled(q.shape[0], q) and has_own_terms(model)


def _eager_on_a_cpu(model: Model, q: Tensor) -> bool:
    """Return whether steps of robots with q (B, n) run eagerly on a CPU and are recordable and small enough."""
    eager = q.device.type == "cpu" and q.numel() <= MAX_NUMBERS and not model.compilation.runs_compiled(q.shape[0], q)
    return eager and why_code_unrecorded(model) is None
