"""Models that were stepped and differentiated are freed when they are dropped."""

import gc
import sys
import weakref

import torch

from tests.rods import rod_through
from torchdismech import Circle, ImplicitEuler, Material, Model, forces, straight, trainable, unroll
from torchdismech.integrate.recorded import recording

RECORDED = recording.STEPS_BEFORE_RECORDING + 4  # steps, of which the last are recorded


class Leaning(forces.Force):
    """A force that differentiates an energy of its own by a leaf which it makes in each evaluation."""

    def forward(self, state, control):
        """Return minus the energy's derivative by a shift of all nodes."""
        with torch.enable_grad():
            shift = torch.zeros_like(state.q).requires_grad_()
            energy = 1e-3 * (state.q + shift).square().sum()
            (slope,) = torch.autograd.grad(energy, shift, create_graph=True)
        return -slope


def differentiated(load: forces.Force, steps: int) -> Model:
    """Return a rod with a trained constant, after two backward passes of so many steps."""
    loads = [forces.Gravity((0, 0, -9.81)), load]
    model = rod_through(straight((0, 0, 0), (0.3, 0, 0), 5), Circle(5e-3), Material(1e6, 1000.0), loads).finalize()
    trainable.scaled(model, ["bend_twist.EI1"])
    for _ in range(2):
        unroll(model, model.initial_state(batch=2), ImplicitEuler(1e-2), steps=steps).positions.sum().backward()
    return model


def tables() -> dict[str, weakref.WeakKeyDictionary]:
    """Return what the library remembers of modules outside of these, by its place."""
    return {
        f"{place}.{name}": value
        for place, module in [*sys.modules.items()]
        if place.startswith("torchdismech")
        for name, value in vars(module).items()
        if isinstance(value, weakref.WeakKeyDictionary)
    }


def test_models_that_were_differentiated_are_freed():
    """Keep no model alive by what is remembered of it: such values must not know the model."""
    models = [differentiated(forces.Viscous(0.05), RECORDED), differentiated(Leaning(), 1)]
    assert not [name for name, table in tables().items() if not any(model in table for model in models)]
    alive = [weakref.ref(model) for model in models]
    del models
    gc.collect()
    assert not any(reference() for reference in alive)
