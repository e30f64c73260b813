"""What has no gradients through a step, or would have wrong ones, is refused by name."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from tests.gradients.cases import SmallEnergy, SmallForce
from tests.rods import rod_through
from torchdismech import Circle, Control, ImplicitEuler, Material, Model, State, forces, straight, trainable, unroll
from torchdismech.rigid import RigidChain, Sdirk2


def rod() -> tuple[Model, State]:
    """Return a hanging rod, and its state at rest."""
    loads = [forces.Gravity((0, 0, -9.81)), forces.Viscous(0.05)]
    model = rod_through(straight((0, 0, 0), (0.3, 0, 0), 5), Circle(5e-3), Material(1e6, 1000.0), loads).finalize()
    return model, model.initial_state()


@pytest.mark.parametrize("given", ["state", "control", "constant"])
def test_forward_mode(given):
    """Refuse forward-mode derivatives by whatever a step is given: those of its first iterate would come out."""
    model, state = rod()
    integrator, one = ImplicitEuler(1e-2), torch.ones_like(state.q)
    with forward_ad.dual_level():
        integrator.step(model, state)  # of nothing that has derivatives
        control = None
        if given == "state":
            state = state.replace(velocity=forward_ad.make_dual(state.velocity, one))
        elif given == "control":
            control = Control(force=forward_ad.make_dual(0 * one, one))
        else:
            drag = forward_ad.make_dual(model.forces[1].viscosity.detach(), torch.ones_like(model.forces[1].viscosity))
            control = Control(values={"Viscous.viscosity": drag})
        with pytest.raises(RuntimeError, match="no forward-mode derivatives.*take reverse mode"):
            integrator.step(model, state, control)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, torch.func.jacrev])
def test_transforms(transform):
    """Refuse the transforms of `torch.func`, and say what to take."""
    model, state = rod()

    def height(velocity):
        return ImplicitEuler(1e-2).step(model, state.replace(velocity=velocity))[0].q.sum()

    velocity = state.velocity[None] if transform is torch.func.vmap else state.velocity
    with pytest.raises(RuntimeError, match=r"cannot be transformed by torch\.func.*torch\.autograd\.grad"):
        transform(height)(velocity)


def test_transforms_of_controls_of_a_state_made_within():
    """Refuse them in words where a robot with loads makes its state in the function itself."""
    line, drag = straight((0, 0, 0), (0.3, 0, 0), 5), forces.Resistive(0.1, 0.2)
    model = rod_through(line, Circle(5e-3), Material(1e6, 1000.0), [drag]).finalize()

    def height(push):
        return ImplicitEuler(1e-2).step(model, model.initial_state(), Control(force=push))[0].q.sum()

    with pytest.raises(RuntimeError, match=r"cannot be transformed by torch\.func.*torch\.autograd\.grad"):
        torch.func.grad(height)(torch.zeros(1, model.n_dofs, dtype=torch.float64))


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev])
@pytest.mark.parametrize("energy", [False, True])
def test_transforms_of_states_of_robots_with_hooks(transform, energy):
    """Refuse them where the function begins with a state: its acceleration takes what autograd makes of the hooks."""
    loads = [] if energy else [SmallForce()]
    builder = rod_through(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0), loads)
    if energy:
        builder.add_energy("bend_twist", SmallEnergy())
    model = builder.finalize()

    def height(velocity):
        return unroll(model, model.initial_state(velocity=velocity), ImplicitEuler(1e-2), 2).positions.sum()

    with pytest.raises(RuntimeError, match=r"cannot be transformed by torch\.func.*torch\.autograd\.grad"):
        transform(height)(torch.zeros(1, model.n_dofs, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("made", [nn.utils.weight_norm, lambda net: prune.l1_unstructured(net, "weight", 0.3)])
def test_weights_that_torch_makes_anew_in_each_call(made):
    """Say what exchanged them, and what to take, as no line of the user did."""
    force = SmallForce()
    made(force.network[0])
    model = rod_through(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0), [force]).finalize()
    state = model.initial_state(batch=2)
    loss = unroll(model, state, ImplicitEuler(1e-2), 3).positions[-1].sum()
    message = (
        r"^SmallForce\.network\.0\.weight \(which a hook of its module makes anew.*parametrizations.*\): exchanged"
    )
    with pytest.raises(RuntimeError, match=message):
        loss.backward()


def test_constants_changed_before_the_backward_pass():
    """Refuse gradients of a step whose equations were others: a constant was changed in place since."""
    model, state = rod()
    factor = trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"])

    def loss():
        return unroll(model, state, ImplicitEuler(1e-2), 3).positions[-1, :, -1].sum()

    (expected,) = torch.autograd.grad(loss(), [factor.log_factor])
    late = loss()
    with torch.no_grad():
        model.forces[1].viscosity.mul_(300.0)
    with pytest.raises(RuntimeError, match=r"Viscous\.viscosity: changed in place between a step and its backward"):
        torch.autograd.grad(late, [factor.log_factor])
    with torch.no_grad():
        model.forces[1].viscosity.div_(300.0)
    # what a factor has made of it was found before the step
    late = loss()
    with torch.no_grad():
        factor.log_factor.add_(1.0)
    (found,) = torch.autograd.grad(late, [factor.log_factor])
    torch.testing.assert_close(found, expected)


class Pushing(nn.Module):
    """A controller with a network."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 3))
        nn.init.constant_(self.net[0].weight, 0.1)
        nn.init.constant_(self.net[0].bias, 0.1)
        self.double()

    def forward(self, state, control, model):
        """Return forces on the nodes."""
        rest = torch.zeros_like(state.q[:, 3 * state.n_nodes :])
        return Control(force=torch.cat([1e-3 * self.net(state.positions).flatten(1), rest], dim=1))


def _of_a_rod(what: str, every: int | None):
    """Return a loss of steps, the tensor it is differentiated by, and a function that changes what is asked for."""
    model, state = rod()
    state, controller = state.detach(), Pushing()
    push = torch.full_like(state.q, 0.1).requires_grad_()
    drag = model.forces[1]
    drag.viscosity.requires_grad_()
    trained = trainable.shifted(model, ["bend_twist.EI1"], unit=1e-3)
    schedule = (lambda time, model: Control(force=1e-3 * push.exp())) if what == "schedule" else None
    if what == "state":
        state = state.replace(velocity=push)

    def taken():
        settings = {"checkpoint_every": every, "controller": controller if what == "controller" else None}
        return unroll(model, state, ImplicitEuler(1e-2), 4, schedule, **settings).q.square().sum()

    within = what == "own checkpoint" and every
    loss = checkpoint(taken, use_reentrant=False) if within else taken()
    by = {"schedule": push, "state": push, "controller": controller.net[0].weight, "exchanged": drag.viscosity}
    change = {
        "exchanged": lambda: setattr(drag, "viscosity", nn.Parameter(2 * drag.viscosity.detach())),
        "constant": lambda: drag.viscosity.add_(1.0),
    }
    of = by.get(what, trained.shift)
    return loss, of, change.get(what, lambda: of.add_(0.3))


def _of_a_chain(what: str, every: int | None):
    """Return the same of a chain."""
    chain = RigidChain.cylinder(3, 0.3, 0.02, 1000.0, 1e6)
    factor = trainable.scaled(chain, ["stiffness_z"])
    state = chain.initial_state(q=torch.full((1, chain.n_dofs), 0.2, dtype=torch.float64)).detach()
    loss = unroll(chain, state, Sdirk2(1e-2), 4, checkpoint_every=every).q.square().sum()
    return loss, factor.log_factor, lambda: (factor.log_factor if what == "factor" else chain.mass).add_(0.3)


@pytest.mark.parametrize(
    ("case", "what", "named"),
    [
        (_of_a_rod, "shift", r"LinearElastic\.EI1 \(Shift\.shift\): changed in place"),
        (_of_a_rod, "own checkpoint", r"LinearElastic\.EI1 \(Shift\.shift\): changed in place"),
        (_of_a_rod, "constant", r"Viscous\.viscosity: changed in place"),
        (_of_a_rod, "exchanged", r"Viscous\.viscosity: exchanged"),
        (_of_a_rod, "controller", r"Pushing\.net\.0\.weight: changed in place"),
        (_of_a_rod, "schedule", r"a tensor \(1, \d+\) that the state, the schedule, .*: changed in place"),
        (_of_a_rod, "state", r"a tensor \(1, \d+\) that the state, the schedule, .*: changed in place"),
        (_of_a_chain, "factor", r"RigidChain\.stiffness_z \(Factor\.log_factor\): changed in place"),
        (_of_a_chain, "mass", r"RigidChain\.mass: changed in place"),
    ],
)
def test_what_changes_before_steps_are_taken_again(case, what, named):
    """Refuse gradients of steps that a checkpoint takes again from something else; unchanged they are as without."""
    slopes = []
    for every in (None, 3):
        loss, by, _ = case(what, every)
        slopes.append(torch.autograd.grad(loss, by)[0])
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-9, atol=0.0)  # of the same steps, to rounding
    loss, by, change = case(what, 3)
    with torch.no_grad():
        change()
    with pytest.raises(RuntimeError, match=f"^{named} between a step and its backward pass, which takes .* again"):
        torch.autograd.grad(loss, by)


def test_a_second_backward_pass_after_a_step_of_an_optimiser():
    """Refuse it with checkpoints, as the steps are taken anew; what schedules were given before may change."""
    raw = torch.zeros((), dtype=torch.float64, requires_grad=True)
    model, state = rod()
    pull = 1e-3 * raw.exp()  # made before the steps: it is what it was
    control = Control(force=pull.expand(state.q.shape))
    run = unroll(model, state.detach(), ImplicitEuler(1e-2), 4, lambda time, model: control, checkpoint_every=2)
    first = torch.autograd.grad(run.q.sum(), raw, retain_graph=True)
    with torch.no_grad():
        raw.add_(0.5)
    assert torch.autograd.grad(run.q.sum(), raw, retain_graph=True) == first
    with torch.no_grad():
        model.forces[1].viscosity.mul_(2.0)
    with pytest.raises(RuntimeError, match=r"Viscous\.viscosity: changed in place"):
        torch.autograd.grad(run.q.sum(), raw)


class Gusts(forces.LocalForce):
    """A learned force with a network, a buffer, a number, a switch and a count of its calls."""

    def __init__(self, size: float):
        super().__init__(reach=0)
        self.size = nn.Parameter(torch.tensor(size, dtype=torch.float64))
        self.register_buffer("gust", torch.ones((), dtype=torch.float64))
        self.share, self.blows, self.calls = 1.0, True, 0
        self.net = nn.Linear(3, 3, dtype=torch.float64)

    def nodal_force(self, state, control):
        """Return a wave in space (B, N, 3)."""
        self.calls += 1
        waves = torch.sin(20 * state.positions + 1) + self.net(state.positions)
        return float(self.blows) * self.share * self.size * self.gust * waves


def _set_in_place(model: Model, gusts: Gusts) -> None:
    gusts.gust.fill_(0.0)


def _train(model: Model, gusts: Gusts) -> None:
    with torch.no_grad():
        gusts.net.weight.add_(0.1)


def _set_anew(model: Model, gusts: Gusts) -> None:
    gusts.gust = torch.zeros((), dtype=torch.float64)


def _set_share(model: Model, gusts: Gusts) -> None:
    gusts.share = 0.0


def _switch_off(model: Model, gusts: Gusts) -> None:
    gusts.blows = False


def _end_a_load(model: Model, gusts: Gusts) -> None:
    model.forces[1].stop = 0.01


def _exchange_a_constant(model: Model, gusts: Gusts) -> None:
    model.forces[0].viscosity = nn.Parameter(torch.tensor(0.5, dtype=torch.float64), requires_grad=False)


CHANGES = {
    "Gusts.gust: changed in place": _set_in_place,
    "Gusts.net.weight: changed in place": _train,
    "Gusts.gust: exchanged": _set_anew,
    "Gusts.share: exchanged": _set_share,
    "Gusts.blows: exchanged": _switch_off,
    "PointForce.stop: exchanged": _end_a_load,
    "Viscous.viscosity: exchanged": _exchange_a_constant,
}


@pytest.mark.parametrize("message", [None, *CHANGES])
def test_what_users_change_between_steps(message):
    """Refuse gradients through steps between which something was set: all would be of what stands there last."""
    loads = [forces.Viscous(0.1), forces.PointForce([4], (0, 0, 1e-2), stop=1.0), gusts := Gusts(0.01)]
    model = rod_through(straight((0, 0, 0), (0.3, 0, 0), 5), Circle(5e-3), Material(1e6, 1000.0), loads).finalize()
    state = model.initial_state().detach()
    for k in range(14):  # steps are recorded from the twelfth on
        if k == 13 and message is not None:
            CHANGES[message](model, gusts)
        state, _ = ImplicitEuler(5e-3).step(model, state)
    if message is None:  # it counted its calls meanwhile
        assert torch.autograd.grad(state.q.sum(), gusts.size)[0].abs() > 0
        return
    with pytest.raises(RuntimeError, match=f"^{message} between a step and its backward pass"):
        torch.autograd.grad(state.q.sum(), gusts.size)


def test_several_gradients_at_once():
    """Say that a step takes one gradient at a time; torch had no rule for a view."""
    model, state = rod()

    def heights(velocity):
        return ImplicitEuler(1e-2).step(model, state.replace(velocity=velocity))[0].positions[0, :, 2]

    assert torch.autograd.functional.jacobian(heights, state.velocity).shape == (5, *state.velocity.shape)
    with pytest.raises(RuntimeError, match="takes one gradient at a time"):
        torch.autograd.functional.jacobian(heights, state.velocity, vectorize=True)


def test_states_are_not_made_within_vmap():
    """Say that many robots are a batch where a state is made within `vmap`, too, which would blame control flow."""
    model, state = rod()
    with pytest.raises(RuntimeError, match=r"initial_state: velocity: .* torch\.func\.vmap: many robots .* a batch"):
        torch.func.vmap(lambda velocity: model.initial_state(velocity=velocity).q)(state.velocity)


@pytest.mark.parametrize("steps", [1, 3])
def test_states_of_inference_mode(steps):
    """Name `no_grad` where a state was made under `inference_mode`; without gradients it steps as any other."""
    model, _ = rod()
    with torch.inference_mode():
        state = model.initial_state()
    unroll(model, state, ImplicitEuler(1e-2), steps)
    trainable.scaled(model, ["bend_twist.EI1"])
    with pytest.raises(RuntimeError, match=r"under torch\.inference_mode: make .* under torch\.no_grad"):
        unroll(model, state, ImplicitEuler(1e-2), steps)


@pytest.mark.parametrize("steps", [1, 3])
def test_backward_passes_in_inference_mode(steps):
    """Say that a backward pass does not stand under `inference_mode`; under `no_grad` it is as any other."""
    model, state = rod()
    stiffness = trainable.scaled(model, ["bend_twist.EI1"])

    def gradient() -> torch.Tensor:
        loss = unroll(model, state.detach(), ImplicitEuler(1e-2), steps).positions.sum()
        with torch.no_grad():
            return torch.autograd.grad(loss, stiffness.log_factor)[0]

    expected = gradient()
    loss = unroll(model, state.detach(), ImplicitEuler(1e-2), steps).positions.sum()
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"torch\.inference_mode; call backward\(\) outside"):
        loss.backward()
    assert torch.equal(gradient(), expected)
