"""What a controller remembers: through cuts, files, checkpoints, failures and parts of a batch."""

import re

import pytest
import torch

from tests.control.robots import Attribute, Integrating, rod
from torchdismech import (
    BDF2,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    SimulationError,
    Static,
    Status,
    Trajectory,
    TrajectoryWriter,
    rollout,
    unroll,
)
from torchdismech.control.protocol import answered, begun, kept

YOUNGS = torch.tensor([[5e5], [1e6], [4e6]], dtype=torch.float64)


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_a_run_that_is_cut_goes_on_bit_for_bit(tmp_path, cut):
    """Cut a run after some steps, into memory and into a file; what goes on is the run in one go."""
    model, steps, integrator = rod(7, YOUNGS), 8, ImplicitEuler(0.01)
    whole = rollout(model, model.initial_state(), integrator, steps, controller=Integrating())
    assert whole.memory["asked"].tolist() == [steps] * 3 and (whole.memory["integral"] != 0).all()
    path = tmp_path / "cut.h5"
    first = rollout(
        model, model.initial_state(), integrator, cut, controller=Integrating(), writer=TrajectoryWriter(path)
    )
    for before in (first, Trajectory.load(path)):
        rest = rollout(model, before.state, integrator, steps - cut, controller=Integrating(), memory=before.memory)
        assert torch.equal(rest.positions, whole.positions[cut:])
        assert all(torch.equal(rest.memory[name], whole.memory[name]) for name in whole.memory)
    anew = rollout(model, first.state, integrator, steps - cut, controller=Integrating())
    assert not torch.equal(anew.positions[-1], whole.positions[-1])


@pytest.mark.parametrize("integrator", [ImplicitEuler(0.01), ImplicitMidpoint(0.01), BDF2(0.01)])
@pytest.mark.parametrize("every", [1, 3, 7])
def test_checkpoints_do_not_change_the_gradient(integrator, every):
    """Take parts of a run again in the backward pass: the numbers and the gradient are those of a run that is kept."""
    model = rod(7, YOUNGS)

    def gradient(controller, **options):
        run = unroll(model, model.initial_state(), integrator, 7, controller=controller, **options)
        (found,) = torch.autograd.grad(run.state.q.square().sum() + run.q.sum(), list(controller.parameters()))
        return run, found

    kept_run, expected = gradient(Integrating())
    run, found = gradient(Integrating(), checkpoint_every=every)
    assert torch.equal(run.q, kept_run.q) and torch.equal(run.memory["integral"], kept_run.memory["integral"])
    assert run.memory["asked"].tolist() == [7] * 3
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)  # the same sums in another order


def test_an_attribute_is_no_memory():
    """Show what the memory is for: an integral kept as an attribute is advanced twice, and its gradient is wrong."""
    model, found = rod(7), []
    for every in (None, 3):
        controller = Attribute()
        run = unroll(
            model, model.initial_state(), ImplicitEuler(0.01), 6, controller=controller, checkpoint_every=every
        )
        run.state.q.square().sum().backward()
        found.append((controller.inner.gain.grad.item(), controller.memory["asked"].item()))
    assert found[0][1] == 6 and found[1][1] == 12
    assert abs(found[1][0] - found[0][0]) > 1e-3 * abs(found[0][0])


def test_gradients_pass_through_the_memory():
    """Differentiate by the memory that a run begins with, against differences."""
    model, integrator = rod(7), ImplicitEuler(0.01, force_tolerance=1e-13, relative_tolerance=0)
    start = model.initial_state()

    def end(integral):
        memory = Integrating().initial(model, start) | {"integral": integral}
        return unroll(model, start, integrator, 5, controller=Integrating(), memory=memory).q[-1].square().sum()

    integral = torch.full((1, 1), 1e-4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(end(integral), integral)
    step = 1e-6
    with torch.no_grad():
        difference = (end(integral + step) - end(integral - step)) / (2 * step)
    assert abs(slope.item() - difference.item()) < 1e-6 * abs(difference.item())


def test_robots_keep_their_own_memory():
    """Step three robots together, in parts and alone: memories are the same up to how sums are grouped."""
    model, steps = rod(7, YOUNGS), 6
    together = rollout(model, model.initial_state(), ImplicitEuler(0.01, chunk=None), steps, controller=Integrating())
    parts = rollout(model, model.initial_state(), ImplicitEuler(0.01, chunk=1), steps, controller=Integrating())
    # 1e-11 relative to the largest: rounding of a solve differs with the number of robots, 1e-16 m in a step here
    size = together.memory["integral"].abs().max()
    assert (parts.memory["integral"] - together.memory["integral"]).abs().max() < 1e-11 * size
    for k, youngs in enumerate(YOUNGS):
        alone = rod(7, float(youngs))
        run = rollout(alone, alone.initial_state(), ImplicitEuler(0.01), steps, controller=Integrating())
        assert (run.memory["integral"][0] - together.memory["integral"][k]).abs().max() < 1e-11 * size


class Pushing(Integrating):
    """The controller with a push at its third step that the second robot cannot take."""

    def forward(self, state, memory, control, model):
        """Return the control with the push."""
        control, after = super().forward(state, memory, control, model)
        due = (memory["asked"] == 2) & (torch.arange(state.batch) == 1)
        force = torch.where(due[:, None], torch.nan, torch.zeros_like(state.q))
        return control.replace(force=force), after


def test_a_failed_step_does_not_advance_the_memory(tmp_path):
    """Fail the second of three robots in its third step: its memory is that of two steps, also in the file."""
    model = rod(7, YOUNGS)
    path = tmp_path / "failed.h5"
    run = rollout(
        model, model.initial_state(), ImplicitEuler(0.01), 5, controller=Pushing(), writer=TrajectoryWriter(path)
    )
    assert run.status[-1].tolist() == [Status.CONVERGED, Status.NOT_FINITE, Status.CONVERGED]
    assert run.memory["asked"].tolist() == [5, 2, 5]
    with pytest.warns(RuntimeWarning, match="robot 1"):
        unrolled = unroll(model, model.initial_state(), ImplicitEuler(0.01), 5, controller=Pushing())
    assert unrolled.memory["asked"].tolist() == [5, 2, 5]
    assert torch.equal(unrolled.memory["integral"], run.memory["integral"])
    before = rollout(model, model.initial_state(), ImplicitEuler(0.01), 2, controller=Pushing())
    assert torch.equal(run.memory["integral"][1], before.memory["integral"][1])
    with pytest.raises(SimulationError, match="step 3: robot 1"):
        rollout(model, model.initial_state(), ImplicitEuler(0.01), 5, controller=Pushing(), throw=True)


def test_a_loop_of_ones_own_is_a_rollout():
    """Write the loop of the protocol's docstring: it gives the rollout's numbers."""
    model, integrator, controller = rod(7), ImplicitEuler(0.01), Integrating()
    state = model.initial_state()
    expected = rollout(model, state, integrator, 4, controller=controller)
    with torch.no_grad():
        memory = begun(controller, model, state, integrator, 4)
        for _ in range(4):
            control, after = answered(controller, state, memory, Control(), model)
            state, info = integrator.step(model, state, control)
            memory = kept(memory, after, info.converged)
    assert torch.equal(state.q, expected.state.q) and torch.equal(memory["integral"], expected.memory["integral"])


def test_controllers_without_memory_stay_as_they_are():
    """Close a loop by a plain function: nothing is remembered; also at an equilibrium, which has no time."""
    model = rod(7)

    def controller(state, control, model):
        return control.replace(
            natural_curvature=state.q.new_tensor([0.01, 0]).expand(state.batch, len(model.springs), 2)
        )

    run = rollout(model, model.initial_state(), ImplicitEuler(0.01), 2, controller=controller)
    assert run.memory == {} and unroll(model, run.state, ImplicitEuler(0.01), 1, controller=controller).memory == {}
    rollout(model, model.initial_state(), Static(), 1, controller=controller)


def remembering(memory=None, after=None):
    """Return a controller with that initial memory, and that answer."""

    class Given:
        def initial(self, model, state):
            return {"x": state.q.new_zeros(state.batch)} if memory is None else memory

        def __call__(self, state, memory, control, model):
            return (control, memory) if after is None else after

    return Given()


@pytest.mark.parametrize(
    ("controller", "message"),
    [
        (remembering(memory=3), "Given.initial: expected a mapping of names to tensors, got int"),
        (
            remembering(memory={"a/b": torch.zeros(1)}),
            "Given.initial: expected names of letters, digits and _, got 'a/b'",
        ),
        (remembering(memory={"x": 0.0}), "Given.initial: x: expected a tensor of .* got float"),
        (remembering(memory={"x": torch.zeros(1, dtype=torch.bool)}), "x: expected a tensor of .* got torch.bool"),
        (remembering(memory={"x": torch.zeros(4)}), r"x: expected a row for each of 1 robots, got shape \(4,\)"),
        (remembering(after=Control()), r"Given has a memory, so it has to return \(Control, memory\) .* got Control"),
        (remembering(after=(None, {})), "controller Given has to return a Control for each step, got None"),
        (remembering(after=(Control(), {})), "memory of Given: expected x, got nothing"),
        (
            remembering(after=(Control(), {"x": torch.zeros(1)})),
            "x: expected shape .* torch.float64, got .* torch.float32",
        ),
    ],
)
@pytest.mark.parametrize("run", [rollout, unroll])
def test_refuses_what_is_no_memory(run, controller, message):
    """Name the controller, what was expected of its memory and what came."""
    model = rod(7)
    with pytest.raises(InputError, match=message):
        run(model, model.initial_state(), ImplicitEuler(0.01), 1, controller=controller)


def test_refuses_memories_that_do_not_fit():
    """Refuse a memory without a controller, of another controller, of other robots, and an integrator without time."""
    model, two = rod(7), rod(7, YOUNGS[:2])
    start = model.initial_state()
    memory = rollout(model, start, ImplicitEuler(0.01), 1, controller=Integrating()).memory
    with pytest.raises(InputError, match="no controller that remembers; got integral, asked"):
        rollout(model, start, ImplicitEuler(0.01), 1, memory=memory)
    with pytest.raises(InputError, match="memory of Integrating: expected integral, asked, got x"):
        rollout(model, start, ImplicitEuler(0.01), 1, controller=Integrating(), memory={"x": torch.zeros(1)})
    with pytest.raises(InputError, match=re.escape("integral: expected shape (2, 1) in torch.float64, got (1, 1)")):
        rollout(two, two.initial_state(), ImplicitEuler(0.01), 1, controller=Integrating(), memory=memory)
    with pytest.raises(InputError, match="Integrating: a controller with memory acts over time, and Static has none"):
        rollout(model, start, Static(), 1, controller=Integrating())
