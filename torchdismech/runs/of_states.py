"""trajectory_of: the states of a loop of one's own as a trajectory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch

from torchdismech.errors import InputError, refuse_one_alone, refuse_other_kind
from torchdismech.model import Model
from torchdismech.robot.state import STATES, BatchState, Control
from torchdismech.runs.stepping import Robots
from torchdismech.trajectory import Frame, Recorder, Trajectory

__all__ = ["trajectory_of"]


@torch.no_grad()
def trajectory_of(model: Robots, states: Iterable[Any], control: Control | None = None) -> Trajectory:
    """Return the trajectory of the states of a loop of your own, to be saved, shown and exported as that of a run.

    Frame k is of state k, and counts as the k-th step. All robots count as converged: states do not say how they came
    about. Contacts that are constraints have no loads, as these are known within steps alone.

    Parameters
    ----------
    states : states of the same robots, one after the other.
    control : its `values` are constants of rods and shells that energies, contacts and the look of obstacles depend on,
        such as those that an environment has drawn.

    Raises
    ------
    InputError
        There is no state, a state or the control does not fit the model, or a chain or arm comes with a control.
    """
    refuse_one_alone("trajectory_of: states", states, "states")
    states = [*states]
    for state in states:
        refuse_other_kind("trajectory_of: states", state, BatchState, STATES)
    batches = {state.batch: None for state in states}
    if len(batches) != 1:
        got = f"some of {' and '.join(map(str, batches))} robots" if batches else "none"
        raise InputError(f"trajectory_of: states: expected one or more, of as many robots each, got {got}")
    if control is not None and not isinstance(model, Model):
        raise InputError("trajectory_of: control: chains and arms take no constants from a control; leave it out")
    recorder = Recorder()
    for step, state in enumerate(state.detach() for state in states):
        frame = Frame.initial(state, model.energies(state, control))
        with model.holding(state, control or Control()) if isinstance(model, Model) else nullcontext():
            if step == 0:  # drawn obstacles look as the control places them
                recorder.start(len(states), model.rod_edges, model.triangles, model.appearance())
            recorder.append(dataclasses.replace(frame, step=step, contact=model.contact_report(state)))
    return recorder.trajectory()
