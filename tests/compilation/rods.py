"""A rod that steps eagerly or compiled, and what tests ask of its steps."""

import torch

from tests.rods import rod_through
from torchdismech import Circle, ImplicitEuler, Material, compilation, forces, straight

# Kernels contract and reorder products: rounding, amplified by the stiffness of the rod.
ROUNDING = 1e-9


def rod(**options):
    """Return a clamped rod of five nodes."""
    loads = [forces.Gravity((0, 0, -9.81)), *options.pop("loads", ())]
    builder = rod_through(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0), loads)
    if energy := options.pop("energy", None):
        builder.add_energy("stretch", energy)
    return builder.finalize(**options)


def stepped(model, count=4, batch=2, chunk=None):
    """Return q (B, n) after some steps."""
    state, integrator = model.initial_state(batch=batch), ImplicitEuler(1e-2, chunk=chunk)
    for _ in range(count):
        state, _ = integrator.step(model, state, throw=True)
    return state.q


def after_evaluations(monkeypatch, model, number: int, batch=2) -> None:
    """Set the threshold to what so many evaluations of a batch take."""
    work = (number - 0.5) * model.compilation.cost.of(batch, model.device)
    monkeypatch.setattr(compilation, "THRESHOLD", work)


def graphs() -> int:
    """Return how many graphs torch has traced since the last reset."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]
