"""Threads that step one model take turns."""

import copy
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, Control, ImplicitEuler, Material, forces, straight
from torchdismech.environments import Environment, Force, Task

STEPS = 30  # they are recorded after 12


def rod():
    """Return a rod under gravity."""
    loads = [forces.Gravity((0, 0, -9.81))]
    points = straight((0, 0, 0), (0.5, 0, 0), 12)
    return rod_through(points, Circle(5e-3), Material(1e6, 1000.0), loads).finalize()


def environment(model):
    """Return an environment of the rod, whose robots have a gravity of their own."""
    task = Task(
        actions=[Force([8], -1.0, 1.0)],
        observations=[lambda model, state, goal: model.forces[0].acceleration.expand(state.batch, 3)],
        reward=lambda model, step: step.after.time,
        constants=lambda model, draws: {"Gravity.acceleration": draws.uniform(-9.0, 9.0, 3)},
    )
    return Environment(model, ImplicitEuler(5e-3), task, batch=2)


@pytest.mark.parametrize(
    "asked",
    [
        lambda env: env.model.strains(env.current.state),
        lambda env: env.model.contact_report(env.current.state),
        lambda env: env.observed(env.current),
        lambda env: env.model.energies(env.current.state),
        lambda env: env.model.accelerated(env.current.state),
        lambda env: env.integrator.prepare(env.model, env.current.state, 10),
        lambda env: env.integrator.reactions(env.model, env.current.state, env.current.state),
        lambda env: env.integrator.equations(env.model, env.current.state),
        lambda env: env.model.state_dict(),
        lambda env: env.model.load_state_dict(rod().state_dict()),
        lambda env: copy.deepcopy(env.model),
    ],
)
def test_what_is_asked_of_a_model_waits_for_its_turn(asked):
    """Ask while another thread has put the numbers of some robots into the model, which do not fit the state."""
    env = environment(rod())
    env.reset()
    three = torch.tensor([[0.0, 0.0, -9.81]] * 3, dtype=torch.float64)
    with ThreadPoolExecutor(1) as pool:
        with env.model.lock, env.model.values_of(Control(values={"Gravity.acceleration": three})).in_place():
            future = pool.submit(asked, env)
            assert not wait([future], timeout=0.5).done
        future.result()


def test_threads_that_share_a_model():
    """Give each thread the steps that it would take alone, though a step puts numbers in the model's places."""
    model = rod()

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
