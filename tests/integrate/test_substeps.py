"""Failed steps taken again in parts."""

import copy
import dataclasses
import functools

import torch

from tests.integrate.recordings import LOADS, rods_on_cpu
from tests.rods import rod_through
from torchdismech import Circle, Control, ImplicitEuler, Material, Status, straight
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.step import RecordedStep
from torchdismech.integrate.substeps import with_retries
from torchdismech.native import taping


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


def test_recordings_and_gradients_search_as_far_as_steps_without(monkeypatch):
    """Try the same ways in a step that fails: eagerly, by a recording that a whole step made, and with gradients."""
    asked, own = [], ImplicitEuler.attempts

    @functools.wraps(own)  # an integrator with ways of its user's is not recorded
    def attempts(self, equations, divisible=False):
        if not taping():
            asked.append((round(method.dt / float(equations.dt)), divisible))
        return own(self, equations, divisible)

    monkeypatch.setattr(ImplicitEuler, "attempts", attempts)
    method = ImplicitEuler(2e-3, max_iterations=1, max_substeps=4)
    fresh = rods_on_cpu(1, LOADS["rough floor"]())
    recorded = copy.deepcopy(fresh)
    state = recorded.initial_state()
    for _ in range(20):
        state, _ = method.step(recorded, state)
    assert any(isinstance(kind.recording, RecordedStep) for kind in recorded.recordings)
    velocity = torch.zeros(1, fresh.n_dofs, dtype=torch.float64)
    velocity[0, 6:27] = torch.linspace(10, -10, 21, dtype=torch.float64)
    hard = fresh.initial_state(velocity=velocity).detach()
    seen = []
    for model, at in ((fresh, hard), (recorded, hard), (fresh, hard.replace(q=hard.q.clone().requires_grad_()))):
        asked.clear()
        _, info = method.step(model, at)
        assert info.status.item() != Status.CONVERGED  # all parts are tried
        seen.append(set(asked))
    assert seen == [{(1, True), (2, True), (4, False)}] * 3
