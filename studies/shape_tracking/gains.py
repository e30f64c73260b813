"""Gains of the tracking loop found by gradient descent through it, from a bad start.

The snake of the example with 21 nodes follows its own first 0.2 s, without feed-forward; the loss is the mean squared
error of its curvature over that of the reference. Both gains are factors of what they begin with, so they stay
positive, and Adam takes steps by their logarithms.

`python -m studies.shape_tracking.gains` prints gains and loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from studies.shape_tracking.shape_tracking import STEP, build, stored, swum, wave
from torchdismech import ImplicitEuler, Model, trainable, unroll
from torchdismech.control import PI, Strains

NODES, STEPS, ROUNDS, RATE = 21, 40, 10, 0.4
START = (0.02, 2.0)  # Kp, Ki [1/s]: the snake hardly follows


@dataclass(frozen=True)
class Round:
    """Gains [1, 1/s] and the loss that they gave."""

    Kp: float
    Ki: float
    loss: float


def tuned(rounds: int = ROUNDS, steps: int = STEPS) -> list[Round]:
    """Return gains and loss of each round of the descent, the start first."""
    model = build(nodes=NODES)
    strains = Strains(model, ["curvature"])
    course = swum(model, strains, duration=(steps + 1) * STEP, schedule=wave)
    controller = PI(model, strains, stored(course), STEP, *START)
    factors = [trainable.scaled(controller, [name]) for name in ("Kp", "Ki")]
    optimizer = torch.optim.Adam([factor.log_factor for factor in factors], lr=RATE)
    wanted = course.curvature[1 : steps + 1, 0]
    found = []
    for _ in range(rounds + 1):
        optimizer.zero_grad()
        loss = _error(model, controller, wanted, steps)
        loss.backward()
        found.append(Round(controller.Kp.item(), controller.Ki.item(), loss.item()))
        optimizer.step()
    return found


def _error(model: Model, controller: PI, wanted: torch.Tensor, steps: int) -> torch.Tensor:
    """Return the mean squared error of the curvature over that of the reference ()."""
    integrator = ImplicitEuler(STEP, force_tolerance=1e-11, relative_tolerance=0)
    run = unroll(model, model.initial_state(), integrator, steps, controller=controller, throw=True)
    at = model.rest_state(steps)
    curvature = controller.strains.measured(model.frames.moved(at, run.q[1:, 0]), model)
    return (curvature - wanted).square().mean() / wanted.square().mean()


def main() -> None:
    """Print the descent."""
    print("     Kp   Ki [1/s]     loss")
    for one in tuned():
        print(f"{one.Kp:7.3f}{one.Ki:11.2f}{one.loss:9.4f}")


if __name__ == "__main__":
    main()
