"""Derivatives of what users write: forces that are nothing but a forward, and tensors that a step does not know."""

import pytest
import torch
from torch import nn

from tests.hooked import (
    INTEGRATORS,
    RATE,
    Centred,
    Learned,
    OwnDamping,
    Swirl,
    assert_matrix_is_derivative,
    moving,
    rod,
)
from torchdismech import (
    Circle,
    ImplicitEuler,
    InputError,
    Material,
    RobotBuilder,
    Static,
    contact,
    elastic,
    forces,
    straight,
    unroll,
)
from torchdismech.testing import check_force

# ---- a force that is nothing but a forward ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", INTEGRATORS)
def test_a_force_without_derivatives_is_implicit(name):
    """Damp a free rod like `MassDamping`, far beyond what explicit steps bear."""
    ends = []
    for force in (OwnDamping(), forces.MassDamping(RATE)):
        model = rod(force, clamp=False)
        state = moving(model)
        for _ in range(5):
            state, info = INTEGRATORS[name].step(model, state, throw=True)
        ends.append(state.velocity)
    assert (ends[0] - ends[1]).abs().max() < 1e-7  # residuals of 1e-11 N over 1e-4 kg in 5 ms, twist included
    assert ends[0][:, : 3 * len(model.nodes)].abs().max() < 0.2  # explicit steps would have come to 3^5 times the start


@pytest.mark.parametrize(
    ("cls", "reach"),
    [(OwnDamping, 0), (Swirl, 1), (Centred, None), (Learned, 1)],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_what_a_force_depends_on_is_found(cls, reach):
    """Find the smallest reach that covers all, also of a network that does nothing yet."""
    force = cls()
    model = rod(force)
    assert force.dependence.reach == reach
    if cls is Learned:
        nn.init.constant_(force.network[2].weight, 0.3)
    check_force(force, model, moving(model)).raise_if_failed()


class NumpyForce(forces.Force):
    """A force that leaves torch, which autograd cannot follow."""

    def forward(self, state, control):
        """Return the force (B, n)."""
        return torch.tensor(-0.1 * state.velocity.numpy())


class NumpyLocalForce(forces.LocalForce):
    """The same of one whose dependence is known."""

    def nodal_force(self, state, control):
        """Return the force (B, N, 3)."""
        return torch.tensor(-0.1 * state.node_velocities.numpy())


class NumpyEnergy(elastic.Energy):
    """An energy that leaves torch."""

    def density(self, strain):
        """Return the density (S, B)."""
        return torch.tensor(strain[0].numpy() ** 2)


def test_what_numpy_computes_is_refused_in_words():
    """Name the force or energy, and say that its derivatives come from autograd, as torch's own words mislead."""
    for force in (NumpyForce(), NumpyLocalForce()):
        with pytest.raises(InputError, match=rf"^{type(force).__name__}: its derivatives cannot .*without numpy"):
            rod(force)
    with pytest.raises(InputError, match=r"^NumpyEnergy \(bend_twist\): its derivatives cannot .*without numpy"):
        rod(energy=NumpyEnergy())


@pytest.mark.parametrize("cls", [Swirl, Centred, Learned])
@pytest.mark.parametrize("name", [*INTEGRATORS, "static"])
def test_the_newton_matrix_has_the_derivatives_of_a_force(cls, name):
    """Solve steps in few iterations, the sign that the matrix is the residual's derivative: halved it takes many."""
    force = cls()
    model = rod(forces.Gravity((0, 0, -9.81)), force)
    if cls is Learned:
        nn.init.constant_(force.network[2].weight, 0.3)
    integrator = Static() if name == "static" else INTEGRATORS[name]
    assert_matrix_is_derivative(integrator, model, moving(model))


@pytest.mark.parametrize("name", INTEGRATORS)
@pytest.mark.parametrize("cls", [Swirl, Learned])
def test_gradients_pass_a_force_without_derivatives(cls, name):
    """Differentiate steps by the start; central differences agree."""
    force = cls()
    model = rod(force)
    if cls is Learned:
        nn.init.constant_(force.network[2].weight, 0.3)
    start, generator = moving(model), torch.Generator().manual_seed(5)
    direction = torch.randn(start.velocity.shape, dtype=torch.float64, generator=generator)
    weights = torch.randn(start.q.shape, dtype=torch.float64, generator=generator)

    def loss(shift):
        velocity = start.velocity + shift * direction
        return (unroll(model, start.replace(velocity=velocity), INTEGRATORS[name], 3).q[-1] * weights).sum()

    shift = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(shift), shift)
    with torch.no_grad():
        difference = (loss(torch.tensor(1e-5)) - loss(torch.tensor(-1e-5))) / 2e-5
    # differences of positions of 0.1 m that steps find to 1e-10 m
    assert gradient.item() == pytest.approx(difference.item(), rel=1e-4)


def test_a_potential_may_be_claimed():
    """Step a force with a potential as a conservative one: the matrix stays symmetric."""

    class Spring(forces.Force):
        """Every node to its own place at rest."""

        conservative = True

        def forward(self, state, control):
            """Return the force of the springs."""
            return self.body.on_nodes(-2.0 * (state.positions - self.body.nodes))

        def potential(self, state, control):
            """Return the energy of the springs."""
            return (state.positions - self.body.nodes).square().sum((1, 2))

    model = rod(Spring())
    assert model.layout.pattern.symmetric and model.mechanics.conservative(at_rest=False)
    _, info = ImplicitEuler(0.02).step(model, moving(model))
    assert info.converged.all()


# ---- tensors that a step does not know -------------------------------------------------------------------------------


class Gain(forces.LocalForce):
    """A damping whose gain is found in several places."""

    def __init__(self, place, gain):
        super().__init__(reach=0)
        self.place = place
        if place == "list":
            self.parts = [nn.Linear(1, 1, bias=False, dtype=torch.float64)]
            nn.init.constant_(self.parts[0].weight, 0.3)
        elif place == "attribute":
            self.latent = gain
        elif place == "closure":
            self.call = lambda: gain
        else:
            self.register_buffer("latent", gain)

    def nodal_force(self, state, control):
        """Return the damping."""
        one = torch.ones(1, dtype=torch.float64)
        gain = self.parts[0](one) if self.place == "list" else self.call() if self.place == "closure" else self.latent
        return -gain * state.node_velocities


@pytest.mark.parametrize("name", INTEGRATORS)
@pytest.mark.parametrize(
    ("place", "message"), [("list", "Gain.parts"), ("attribute", "Gain.latent"), ("closure", "tensor of shape")]
)
def test_gradients_by_tensors_that_a_step_does_not_know_are_refused(place, message, name):
    """Refuse at the first recorded step, by module and attribute; steps without gradients go on."""
    source = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    model = rod(Gain(place, source * 1.0))
    state = moving(model).detach()
    with torch.no_grad():
        INTEGRATORS[name].step(model, state, throw=True)
    with pytest.raises(InputError, match=f"{message}.*not registered"):
        INTEGRATORS[name].step(model, state)
    for every in (None, 2):
        with pytest.raises(InputError, match=message):
            unroll(model, state, INTEGRATORS[name], 3, checkpoint_every=every)


@pytest.mark.parametrize("every", [None, 2])
def test_gradients_by_a_registered_latent_are_right(every):
    """Pass gradients through a buffer that is no leaf, to what it was made of."""
    source = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    model = rod(Gain("buffer", source * 2.0))
    state = moving(model).detach()

    def loss(scale):
        model.forces[0].latent = scale * 2.0
        return unroll(model, state, INTEGRATORS["euler"], 3, checkpoint_every=every).q[-1].square().sum()

    (gradient,) = torch.autograd.grad(loss(source), source)
    with torch.no_grad():
        difference = (loss(source + 1e-5) - loss(source - 1e-5)) / 2e-5
    assert gradient.item() == pytest.approx(difference.item(), rel=1e-5)  # truncation and rounding of differences


@pytest.mark.parametrize("moved_by", ["nothing", "velocity"])
def test_a_late_latent_is_refused(moved_by):
    """Refuse a tensor that was set as an attribute after steps, where nothing else requires gradients, too."""
    model = rod(Gain("attribute", torch.tensor(0.3, dtype=torch.float64)))
    state = moving(model).detach()
    state = state.replace(velocity=state.velocity.clone().requires_grad_(moved_by == "velocity"))
    for _ in range(2):
        ImplicitEuler(0.02).step(model, state)
    model.forces[0].latent = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(InputError, match="Gain.latent: requires gradients, but is not registered"):
        ImplicitEuler(0.02).step(model, state)
    model.forces[0].latent = torch.tensor(0.3, dtype=torch.float64)
    ImplicitEuler(0.02).step(model, state)


def test_a_latent_that_no_look_shows_is_refused_in_the_backward_pass():
    """Refuse weights in a list that require gradients only after the first recorded step."""
    model = rod(Gain("list", None))
    model.forces[0].parts[0].requires_grad_(False)
    state = moving(model).detach()
    velocity = state.velocity.clone().requires_grad_()
    ImplicitEuler(0.02).step(model, state.replace(velocity=velocity))
    model.forces[0].parts[0].requires_grad_(True)
    after, _ = ImplicitEuler(0.02).step(model, state.replace(velocity=velocity))
    with pytest.raises(InputError, match="Gain.parts"):
        after.q.sum().backward()


class Resistance(elastic.Energy):
    """A dissipation."""

    def __init__(self, latent):
        super().__init__()
        self.latent = latent

    def density(self, strain):
        """Return the power that bending dissipates."""
        return 1e-7 * self.latent * (strain[0] ** 2 + strain[1] ** 2)


class Fading(elastic.Inelastic):
    """A law whose internal variable alone depends on a tensor."""

    variables = ("z",)

    def __init__(self, latent):
        super().__init__()
        self.latent = latent

    def density(self, strain, past):
        """Return the energy of a spring."""
        return 1e-6 * (past.internal[0] + strain[0] - past.strain[0]) ** 2

    def updated(self, strain, past):
        """Return what is left of its strain."""
        return (self.latent * (past.internal[0] + strain[0] - past.strain[0]),)

    def stored(self, internal):
        """Return the energy that is left."""
        return 1e-6 * internal[0] ** 2


class Ball(contact.Shape):
    """A ball far from the robot."""

    def __init__(self, latent):
        super().__init__()
        self.latent = latent

    def distance_and_derivatives(self, points):
        """Return the distance from the ball, its gradient and its curvature."""
        away = points - points.new_tensor([0.0, 0.0, -9.0])
        length = torch.linalg.vector_norm(away, dim=-1)
        normal = away / length[..., None]
        plane = torch.eye(3, dtype=points.dtype) - normal[..., :, None] * normal[..., None, :]
        return length - self.latent, normal, plane / length[..., None, None]

    @property
    def depth(self):
        """Its radius."""
        return self.latent.detach()


HIDING = {
    "Resistance": lambda builder, latent: builder.add_dissipation("bend_twist", Resistance(latent)),
    "Fading": lambda builder, latent: builder.add_inelastic("bend_twist", Fading(latent)),
    "Ball": lambda builder, latent: builder.add_contact(contact.Obstacle(Ball(latent), contact.Complementarity())),
}


@pytest.mark.parametrize("kind", HIDING)
def test_what_resists_remembers_or_is_touched_hides_no_tensor(kind):
    """Refuse a tensor that no force at rest depends on: of a dissipation, an internal variable, a gap."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 4), Circle(2e-3), Material(1e6, 1000.0))
    HIDING[kind](builder, torch.tensor(0.5, dtype=torch.float64, requires_grad=True))
    model = builder.finalize()
    velocity = torch.zeros(1, model.n_dofs, dtype=torch.float64, requires_grad=True)
    state = model.initial_state(velocity=velocity)
    with pytest.raises(InputError, match=f"{kind}.latent: requires gradients, but is not registered"):
        ImplicitEuler(1e-3).step(model, state)
