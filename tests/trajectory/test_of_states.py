"""Trajectories of the states of loops that users write."""

import math

import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, Control, ImplicitEuler, InputError, Material, forces, rollout, straight, trainable
from torchdismech.contact import HalfSpace, Obstacle, Penalty
from torchdismech.rigid import RigidChain
from torchdismech.runs import trajectory_of


def falling():
    """Return a held rod that falls on a floor."""
    weight = forces.Gravity((0.0, 0.0, -9.81))
    builder = rod_through(straight((0, 0, 0), (0.2, 0, 0), 6), Circle(5e-3), Material(1e5, 1000.0), [weight])
    builder.add_contact(Obstacle(HalfSpace((0, 0, -0.02), (0, 0, 1)), Penalty(20.0, 1e-3), name="floor"))
    return builder.finalize(compile=False)


def states_of(model, control=None, steps=12):
    """Return the states of a loop of steps, the first one included."""
    states, integrator = [model.initial_state(2)], ImplicitEuler(0.02)
    for _ in range(steps):
        states.append(integrator.step(model, states[-1], control)[0])
    return states


def test_states_of_a_loop_are_the_frames_of_a_run(tmp_path):
    """Take the steps of a run one by one: positions, times, energies and contacts are those that the run has stored."""
    model = falling()
    run = rollout(model, model.initial_state(2), ImplicitEuler(0.02), 12)
    own = trajectory_of(model, states_of(model))
    assert own.step.tolist() == run.step.tolist() and not own.failed.any() and run.contact["active"].any()
    for name, value in run.datasets().items():
        if not name.startswith("newton/"):  # what the search did, which states do not say
            torch.testing.assert_close(own.datasets()[name], value, rtol=1e-9, atol=1e-12)
    own.save(tmp_path / "own.h5")
    assert own.appearance() == run.appearance()


def test_energies_are_of_the_constants_of_a_control():
    """Make each robot as stiff as a control says: elastic energies are as many times those of the model's own."""
    model = falling()
    times = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    values = Control(values={"stretch.EA": times * 1e5 * math.pi * 5e-3**2})
    states = states_of(model, values)
    own, told = trajectory_of(model, states), trajectory_of(model, states, values)
    torch.testing.assert_close(told.energies["stretch"], own.energies["stretch"] * times[:, 0])


def test_obstacles_are_where_a_control_or_training_has_put_them():
    """Lower the floor of each robot by a control, then by a trained shift: the run shows it there."""
    model = falling()
    heights = torch.tensor([[0.0, 0.0, -0.3], [0.0, 0.0, -0.4]], dtype=torch.float64)
    told = trajectory_of(model, [model.initial_state(2)], Control(values={"floor.point": heights}))
    assert torch.equal(told.appearance().things[0].shape.point, heights)
    trainable.shifted(model, ["floor.point"], 0.1, (3,)).shift.data[2] = -1.0
    (floor,) = rollout(model, model.initial_state(2), ImplicitEuler(0.02), 1).appearance().things
    assert type(floor.shape) is HalfSpace and floor.shape.point.flatten()[2].item() == pytest.approx(-0.12)


def test_what_is_no_loop_of_states_is_refused():
    """Refuse what is no list of states of as many robots of the model, and a control beside a chain."""
    model, chain = falling(), RigidChain.cylinder(2, 0.2, 5e-3, 1000.0, 1e6)
    with pytest.raises(InputError, match="states: expected one or more, of as many robots each, got none"):
        trajectory_of(model, [])
    with pytest.raises(InputError, match="got some of 1 and 3 robots"):
        trajectory_of(model, [model.initial_state(), model.initial_state(3)])
    with pytest.raises(InputError, match="states: expected a list of states, also of one alone, got State"):
        trajectory_of(model, model.initial_state())
    with pytest.raises(InputError, match=r"states: expected a state, such as model.initial_state\(\), got tuple"):
        trajectory_of(model, [ImplicitEuler(0.02).step(model, model.initial_state())])
    with pytest.raises(InputError):
        trajectory_of(model, [chain.initial_state()])
    with pytest.raises(InputError, match="control: chains and arms take no constants"):
        trajectory_of(chain, [chain.initial_state()], Control())
    assert trajectory_of(chain, [chain.initial_state()]).batch == 1
