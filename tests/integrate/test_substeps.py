"""Failed steps taken again in parts."""

import dataclasses

import torch

from tests.rods import rod_through
from torchdismech import Circle, Control, ImplicitEuler, Material, Status, straight
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.substeps import with_retries


def test_only_the_smallest_parts_are_not_divisible():
    """Tell searches whether a robot that they do not solve takes its step again in smaller parts."""
    model = rod_through(straight((0, 0, 0), (0.1, 0, 0), 3), Circle(2e-3), Material(1e6, 1000.0)).finalize()
    state, method = model.initial_state(), ImplicitEuler(1e-2)
    _, info = method.step(model, state)
    failed = dataclasses.replace(info, status=torch.full_like(info.status, int(Status.MAX_ITERATIONS)))
    running = torch.ones(1, dtype=torch.bool)
    problem = StepProblem(model, method, state, Control(), method.dt, running)
    for most, expected in ((4, [(1, True), (2, True), (4, False)]), (5, [(1, True), (2, True), (4, False)])):
        seen = []

        def take(part, seen=seen):
            seen.append((round(method.dt / part.dt), part.divisible))
            return part.state, failed

        with_retries(take, problem, most)
        assert seen == expected
