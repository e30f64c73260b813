"""Gradients of recorded steps by recordings of their own: every bit as without, and only where they hold."""

import functools

import pytest
import torch

from tests.integrate.recordings import BATCH, INTEGRATORS, LOADS, ROBOTS, rods, rods_on_cpu
from tests.integrate.test_apart import LAWS, two_rods
from torchdismech import BDF2, Control, ImplicitEuler, InputError, forces, trainable, unroll
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, SelfContact
from torchdismech.integrate.gradients import gradient
from torchdismech.integrate.recorded import adjoint as recorded_adjoint
from torchdismech.integrate.recorded import gradients as recorded_gradient
from torchdismech.integrate.recorded import recording
from torchdismech.native.graphs import Unrecordable

ROLLOUTS = 3
STEPS = 5
TRAINED = {"rods": "bend_twist.EI1", "hinges": "hinge.hinge", "mid-edges": "midedge.stiffness"}


@pytest.fixture
def recorded(monkeypatch):
    """Record steps and gradients from the first on; say of each backward pass of a step whether a recording took it."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
    monkeypatch.setattr(recorded_gradient, "PASSES_BEFORE_RECORDING", 1)
    said, plain = [], gradient.recorded_gradients

    def told(*given):
        found = plain(*given)
        said.append(found is not None)
        return found

    monkeypatch.setattr(gradient, "recorded_gradients", told)
    return said


def found_by(model, integrator, tensors, rows, steps=STEPS, control=None, speed=0.1):
    """Return the gradients by tensors, and by the velocity before some rollouts, in which each moves otherwise."""
    found = []
    for k in range(ROLLOUTS):
        state = model.initial_state(batch=rows)
        torch.manual_seed(k)
        velocity = (speed * torch.rand_like(state.velocity)).requires_grad_()
        held = None if control is None else (lambda time, model: control)
        run = unroll(model, state.replace(velocity=velocity), integrator, steps, schedule=held)
        leaves = [velocity, *tensors]
        found += torch.autograd.grad((run.q[-1] ** 2).sum() + run.velocity[-1].sum(), leaves)
        found.append(run.q)
        with torch.no_grad():  # as an optimiser does: recordings read what the tensors are now
            for tensor in tensors:
                tensor.mul_(1.01)
    return [tensor.detach() for tensor in found]


def with_and_without(recorded, monkeypatch, run):
    """Return what a function finds with recorded gradients and without."""
    found = run()
    with monkeypatch.context() as patch:
        patch.setattr(gradient, "recorded_gradients", lambda *given: None)
        return found, run()


def assert_every_bit(pair):
    """Compare tensors, one by one."""
    for a, b in zip(*pair, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("integrator", [*INTEGRATORS, "bdf2"])
@pytest.mark.parametrize("robot", ROBOTS)
def test_every_bit_is_kept(robot, integrator, recorded, monkeypatch):
    """Differentiate steps of robots that differ by states and by trained constants."""
    make = {**INTEGRATORS, "bdf2": lambda: BDF2(1e-2)}[integrator]

    def run():
        model = ROBOTS[robot](compile=False)
        factor = trainable.scaled(model, [TRAINED[robot]])
        return found_by(model, make(), list(factor.parameters()), BATCH)

    pair = with_and_without(recorded, monkeypatch, run)
    assert_every_bit(pair)
    assert all(recorded), "each step is differentiated by a recording"
    assert all(bool((g != 0).any()) for g in pair[0])


@pytest.mark.parametrize("integrator", [*INTEGRATORS, "bdf2"])
def test_gradients_by_all_of_a_state_keep_every_bit(integrator, recorded, monkeypatch):
    """Differentiate single steps by every field, weighed otherwise each time: BDF2 hands one gradient through."""
    make = {**INTEGRATORS, "bdf2": lambda: BDF2(1e-2)}[integrator]

    def run():
        model, one, found = rods_on_cpu(2), make(), []
        state, _ = one.step(model, model.initial_state(2))
        torch.manual_seed(0)
        for _ in range(4):
            leaves = [field.detach().clone().requires_grad_() for field in state.fields()]
            after, _ = one.step(model, state.with_fields(leaves))
            total = sum((field * torch.randn_like(field)).sum() for field in after.fields() if field.requires_grad)
            found += torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
            state = after.with_fields([field.detach() for field in after.fields()])
        return found

    assert_every_bit(with_and_without(recorded, monkeypatch, run))
    assert all(recorded[1:])


@pytest.mark.parametrize("load", LOADS)
def test_loads_keep_every_bit(load, recorded, monkeypatch):
    """Differentiate steps with loads that change within them, and with contact with obstacles."""

    def run():
        return found_by(rods_on_cpu(3, LOADS[load]()), ImplicitEuler(5e-3), [], 3)

    assert_every_bit(with_and_without(recorded, monkeypatch, run))
    assert any(recorded) or load == "explicit"


@pytest.mark.parametrize("law", LAWS)
def test_steps_of_robots_apart_keep_every_bit(law, recorded, monkeypatch):
    """Differentiate steps in which nothing that is searched for touches as steps without this contact."""

    def run(contact):
        model = two_rods(contact)
        names = ["bend_twist.EI1", *({"self_contact.stiffness"} & set(trainable.constants(model)))]
        return found_by(model, ImplicitEuler(2e-3), list(trainable.scaled(model, names).parameters()), 2)

    found, plain = with_and_without(recorded, monkeypatch, lambda: run(SelfContact(LAWS[law]())))
    assert all(recorded) and len(recorded) == ROLLOUTS  # one step of each run; a loop goes back through the others
    assert_every_bit((found, plain))
    for a, b in zip(found, run(None), strict=True):
        assert (a - b).abs().max() <= 1e-12 * b.abs().max()


@pytest.mark.parametrize("users_load", [False, True], ids=["own", "a user's"])
@pytest.mark.parametrize("floor", [-1.0, -0.005], ids=["far below", "landing"])
def test_steps_above_an_obstacle_that_is_a_constraint(floor, users_load, recorded, monkeypatch):
    """Record backward passes of steps in which the robots do not touch it with every bit, and those in which they do.

    Loads are differentiated in another way, which agrees as far as steps are solved: within 1e-6 of their forces.
    """

    def run():
        floor_below = Obstacle(HalfSpace((0, 0, floor), (0, 0, 1)), Complementarity(), Friction(0.3))
        model = two_rods(floor_below, load=Follows() if users_load else None)
        factor = trainable.scaled(model, ["bend_twist.EI1"])
        gains = [model.forces[1].gain] if users_load else []
        return found_by(model, ImplicitEuler(2e-3), [*factor.parameters(), *gains], 1, steps=12, speed=-0.1)

    found, plain = with_and_without(recorded, monkeypatch, run)
    assert recorded and all(recorded)
    if floor == -1 and not users_load:  # autograd sums what reaches the state through the load in another order
        assert_every_bit((found, plain))
    for a, b in zip(found, plain, strict=True):
        assert float((a - b).abs().max()) <= 1e-6 * float(b.abs().max())


def test_steps_in_which_parts_touch_are_differentiated_with_their_contact(recorded, monkeypatch):
    """Differentiate a fall, of which recordings take the steps before the impact, and the impact."""

    def run():
        model = two_rods(SelfContact(LAWS["penalty"](), Friction(0.3, 1e-3)), height=0.009)
        factor = trainable.scaled(model, ["self_contact.stiffness"])
        return found_by(model, ImplicitEuler(2e-3), list(factor.parameters()), 1, steps=12, speed=-0.3)

    found, plain = with_and_without(recorded, monkeypatch, run)
    assert any(recorded) and not all(recorded)
    assert_every_bit((found, plain))
    assert bool((found[1] != 0).all())  # by the stiffness of the contact


def test_controls_are_differentiated(recorded, monkeypatch):
    """Differentiate by what a control sets, values of the model by name among it."""
    curvature = torch.full((2, 7, 2), 0.01, dtype=torch.float64).requires_grad_()
    viscosity = torch.tensor([0.1, 0.3], dtype=torch.float64)[:, None].requires_grad_()

    def run():
        model = rods_on_cpu(2, forces.Viscous(0.2))
        name = next(name for name in model.places if "viscosity" in name or "coefficient" in name)
        control = Control(natural_curvature=curvature, values={name: viscosity})
        found = []
        for _ in range(2):
            run = unroll(model, model.initial_state(2), ImplicitEuler(1e-2), 3, schedule=lambda time, model: control)
            found += torch.autograd.grad((run.q[-1] ** 2).sum(), [curvature, viscosity])
        return found

    assert_every_bit(with_and_without(recorded, monkeypatch, run))
    assert all(recorded)


class Pull(forces.Force):
    """A user's force on all nodes, held within a step: a linear map of the velocities, which is trained."""

    def __init__(self):
        super().__init__(explicit=True)
        self.map = torch.nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, state, control):
        """Return the force (B, n)."""
        return 1e-3 * self.body.on_nodes(self.map(state.node_velocities))


def pulled():
    """Return rods that a learned force pulls, the same each time."""
    torch.manual_seed(0)
    return rods_on_cpu(2, Pull())


def test_learned_loads_keep_every_bit(recorded, monkeypatch):
    """Differentiate by the weights of a force of a user's own, by the state and by a force that a control sets."""
    pushed = torch.full((2, 39), 1e-4, dtype=torch.float64).requires_grad_()

    def run():
        model = pulled()
        control = Control(force=pushed)
        return found_by(
            model,
            ImplicitEuler(1e-2),
            [*(p for p in model.parameters() if p.requires_grad), pushed],
            2,
            control=control,
        )

    found = run()
    with torch.no_grad():
        pushed.fill_(1e-4)
    with monkeypatch.context() as patch:
        patch.setattr(gradient, "recorded_gradients", lambda *given: None)
        expected = run()
    # autograd sums what reaches the state through the load in another order
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12 * float(b.abs().max()))
    assert all(recorded)


def test_unregistered_weights_are_refused(recorded):
    """Refuse a load that depends on weights which are not the model's, recorded or not."""
    model = pulled()
    pull = next(force for force in model.forces if isinstance(force, Pull))
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    pull.map.forward = lambda velocity: velocity * weight
    pull.kept = weight
    state = model.initial_state(2)
    velocity = torch.ones_like(state.velocity).requires_grad_()
    with pytest.raises(InputError, match="not registered"):
        found_by(model, ImplicitEuler(1e-2), [velocity], 2)


def test_parts_of_a_batch(recorded, monkeypatch):
    """Serve all parts by the same recordings, each with its own constants."""

    def run():
        model = rods(compile=False)
        factor = trainable.scaled(model, ["bend_twist.EI1"], (BATCH, 1))
        return found_by(model, ImplicitEuler(1e-2, chunk=2), list(factor.parameters()), BATCH)

    assert_every_bit(with_and_without(recorded, monkeypatch, run))
    assert all(recorded)


def test_robots_that_fail_are_left_to_others(recorded, monkeypatch):
    """Differentiate a step that some robot did not take as ever: the others' gradients are theirs alone."""

    def run():
        model = rods(compile=False)
        state = model.initial_state(batch=BATCH)
        velocity = torch.zeros_like(state.velocity)
        velocity[0] = torch.nan
        velocity.requires_grad_()
        after, _ = ImplicitEuler(1e-2).step(model, state.replace(velocity=velocity))
        return torch.autograd.grad((after.q[1:] ** 2).sum(), [velocity])

    assert_every_bit(with_and_without(recorded, monkeypatch, run))
    assert not recorded


def test_a_matrix_that_cannot_be_factored(recorded, monkeypatch):
    """Leave a step to others whose matrix has no factor at its root."""
    model = rods_on_cpu()
    state = model.initial_state(1)
    integrator = ImplicitEuler(1e-2)
    velocity = torch.zeros_like(state.velocity).requires_grad_()
    for _ in range(2):
        after, _ = integrator.step(model, state.replace(velocity=velocity))
        torch.autograd.grad(after.q.sum(), velocity)
    (passes,) = model.recordings[0].backward.values()
    assert recorded[-1]
    replay = passes.recording._tape.replay
    singular = type("Tape", (), {"replay": lambda self: replay()._replace(singular=torch.tensor(True))})()
    monkeypatch.setattr(passes.recording, "_tape", singular)
    after, _ = integrator.step(model, state.replace(velocity=velocity))
    (found,) = torch.autograd.grad(after.q.sum(), velocity)
    assert not recorded[-1] and found.isfinite().all()


def test_what_a_recording_knows_by_address(recorded):
    """Leave steps to others that depend on a tensor which a recording would take for a constant."""
    model = rods_on_cpu()
    model.term("bend_twist").stencil.alignment.requires_grad_()  # is no input of a recording
    found = found_by(model, ImplicitEuler(1e-2), [model.term("bend_twist").stencil.alignment], 1)
    assert recorded and not any(recorded)
    assert all(bool((g != 0).any()) for g in found)


def test_what_reads_numbers_is_left_alone(recorded, monkeypatch):
    """Differentiate as ever where an operation turns out to read numbers, and try to record once."""
    tries = []

    def refused(*given):
        tries.append(given)
        raise Unrecordable("reads numbers")

    monkeypatch.setattr(recorded_adjoint, "recorded", refused)
    found = found_by(rods_on_cpu(), ImplicitEuler(1e-2), [], 1)
    assert len(tries) == 1 and recorded and not any(recorded)
    assert all(bool((g != 0).any()) for g in found)


def test_wait_before_a_recording(monkeypatch):
    """Record once some steps of a kind were differentiated, apart for each set of tensors that require gradients."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
    model, integrator = rods_on_cpu(), ImplicitEuler(1e-2)
    state = model.initial_state(1)
    for k in range(recorded_gradient.PASSES_BEFORE_RECORDING + 1):
        velocity = torch.zeros_like(state.velocity).requires_grad_()
        after, _ = integrator.step(model, state.replace(velocity=velocity))
        torch.autograd.grad(after.q.sum(), velocity)
        (passes,) = model.recordings[0].backward.values()
        assert (passes.recording is not None) == (k + 1 >= recorded_gradient.PASSES_BEFORE_RECORDING)


class Follows(forces.Force):
    """A user's force that is held within a step: it goes with the first node's velocity, by a trained number."""

    def __init__(self):
        super().__init__(explicit=True)
        self.gain = torch.nn.Parameter(torch.tensor(-1e-3, dtype=torch.float64))

    def forward(self, state, control):
        """Return the force (B, n)."""
        return self.gain * self.body.on_nodes(state.node_velocities)


@pytest.mark.parametrize("load", [None, Follows], ids=["own", "a user's"])
@pytest.mark.parametrize("size", [2, 4, 5])
def test_parts_keep_every_bit(size, load, recorded, monkeypatch):
    """Differentiate steps of seven robots, some at a time, by constants of each and of all, and by a control."""
    more = torch.linspace(1.0, 1.001, 7, dtype=torch.float64)[:, None].requires_grad_()

    def run(chunk=size):
        model = rods_on_cpu(7, None if load is None else load())
        trained = [trainable.scaled(model, ["bend_twist.GJ"]), trainable.scaled(model, ["bend_twist.EI1"], (7, 1))]
        parameters = [p for part in (*trained, *model.forces) for p in part.parameters() if p.requires_grad]
        leaves = [more, *parameters]
        integrator, found = ImplicitEuler(1e-2, chunk=chunk), []
        for k in range(ROLLOUTS):
            state, control = model.initial_state(7), Control(rest_length=more * model.natural_strains(7).rest_length)
            velocity = torch.full_like(state.velocity, 0.1 * k).requires_grad_()
            held = functools.partial(lambda control, time, model: control, control)
            end = unroll(model, state.replace(velocity=velocity), integrator, 3, schedule=held)
            found += [*torch.autograd.grad((end.q[-1] ** 2).sum(), [velocity, *leaves]), end.q.detach()]
        return found

    pair = with_and_without(recorded, monkeypatch, run)
    assert_every_bit(pair)
    assert all(recorded), "parts are differentiated by a recording"
    for a, b in zip(pair[0], run(chunk=None), strict=True):
        assert (a - b).abs().max() <= 1e-9 * b.abs().max()
