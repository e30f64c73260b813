"""Threads that step one model take turns."""

from concurrent.futures import ThreadPoolExecutor

import torch

from tests.rods import rod_through
from torchdismech import Circle, Control, ImplicitEuler, Material, forces, straight

STEPS = 30  # they are recorded after 12


def test_threads_that_share_a_model():
    """Give each thread the steps that it would take alone, though a step puts numbers in the model's places."""
    loads = [forces.Gravity((0, 0, -9.81))]
    points = straight((0, 0, 0), (0.5, 0, 0), 12)
    model = rod_through(points, Circle(5e-3), Material(1e6, 1000.0), loads).finalize()

    def stepped(pull: float) -> torch.Tensor:
        acceleration = torch.tensor([[pull, 0.0, 0.0]], dtype=torch.float64)
        state, integrator = model.initial_state(), ImplicitEuler(5e-3)
        for _ in range(STEPS):
            control = Control(values={"Gravity.acceleration": acceleration})
            state, info = integrator.step(model, state, control)
            assert bool(info.converged.all())
        return state.q

    pulls = [-3.0, 2.0, 9.0]
    alone = [stepped(pull) for pull in pulls]
    with ThreadPoolExecutor(len(pulls)) as pool:
        together = list(pool.map(stepped, pulls))
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a, b)
