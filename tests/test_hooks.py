"""What users write: implicit where it varies, its gradients right or refused, and named where it breaks a claim."""

import copy

import pytest
import torch
from torch import nn

from tests.rods import rod_through
from torchdismech import (
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    SimulationError,
    Static,
    forces,
    helix,
    unroll,
)
from torchdismech.elastic import Energy
from torchdismech.testing import check_force

INTEGRATORS = {
    "euler": ImplicitEuler(0.005, force_tolerance=1e-11, relative_tolerance=0),
    "midpoint": ImplicitMidpoint(0.005, force_tolerance=1e-11, relative_tolerance=0),
    "newmark": Newmark(0.005, force_tolerance=1e-11, relative_tolerance=0),
}
RATE = 800.0  # 1/s; explicit steps of 5 ms multiply the velocity by -3


class OwnDamping(forces.Force):
    """Mass damping as a user writes it: nothing but `forward`."""

    def forward(self, state, control):
        """Return -rate m v on the nodes."""
        return self.body.on_nodes(-RATE * self.body.node_mass().unsqueeze(-1) * state.node_velocities)


class Swirl(forces.Force):
    """A force on nodes and twist angles that depends on neighbours, positions and velocities; not symmetric."""

    def forward(self, state, control):
        """Return pushes along and across the edges, and torques."""
        x, u, edges = state.positions, state.node_velocities, torch.as_tensor(self.body.rod_edges)
        e = x[:, edges[:, 1]] - x[:, edges[:, 0]]
        push = 0.1 * torch.linalg.cross(u[:, edges[:, 0]], e) + 0.01 * torch.tanh(30 * e)
        total = torch.zeros_like(x).index_add(1, edges[:, 1], push)
        return torch.cat([total.flatten(1), 1e-4 * torch.sin(state.twist) * e[..., 2]], dim=1)


class Centred(forces.Force):
    """A spring of every node to the mean of all: every dof depends on every other."""

    def forward(self, state, control):
        """Return the force towards the mean position."""
        x = state.positions
        return self.body.on_nodes(-0.5 * (x - x.mean(1, keepdim=True)))


class Learned(forces.Force):
    """A network on each edge, whose last layer starts from zero: untrained it depends on nothing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        nn.init.zeros_(self.network[2].weight)
        nn.init.zeros_(self.network[2].bias)

    def forward(self, state, control):
        """Return equal and opposite pushes on the ends of edges."""
        x, u, edges = state.positions, state.node_velocities, torch.as_tensor(self.body.rod_edges)
        start, end = edges[:, 0], edges[:, 1]
        push = 1e-3 * self.network(torch.cat([x[:, end] - x[:, start], u[:, end] - u[:, start]], dim=-1))
        return self.body.on_nodes(torch.zeros_like(x).index_add(1, start, push).index_add(1, end, -push))


def rod(*loads, batch=None, clamp=True, energy=None, youngs=1e6):
    """Return a rod of seven nodes, curved and clamped, with the forces."""
    shape = helix((0, 0, 0), (0.05, 0, 0), (0, 0.1, 1), 4.0, 0.1, 7)
    stiffness = youngs if batch is None else torch.linspace(youngs, 2 * youngs, batch, dtype=torch.float64)[:, None]
    builder = rod_through(shape, Circle(2e-3), Material(stiffness, 1000.0), loads, "edge" if clamp else "not")
    if energy is not None:
        builder.add_energy("bend_twist", energy)
    return builder.finalize(compile=False)


def moving(model, batch=2):
    """Return states of robots that are bent and move."""
    noise = torch.randn(2, batch, model.n_dofs, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    rest = model.initial_state(batch=batch)
    return model.initial_state(q=rest.q + 1e-4 * noise[0], velocity=0.01 * noise[1])


# ---- a force that is nothing but a forward -----------------------------------------------------------------------


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


@pytest.mark.parametrize("cls", [Swirl, Centred, Learned])
@pytest.mark.parametrize("name", [*INTEGRATORS, "static"])
def test_the_newton_matrix_has_the_derivatives_of_a_force(cls, name):
    """Solve steps in few iterations, the sign that the matrix is the residual's derivative: halved it takes many."""
    force = cls()
    model = rod(forces.Gravity((0, 0, -9.81)), force)
    if cls is Learned:
        nn.init.constant_(force.network[2].weight, 0.3)
    integrator = Static() if name == "static" else INTEGRATORS[name]
    balance = integrator.equations(model, moving(model))
    x = moving(model).model.unknowns.picked(q)
    _, values = balance.residual_and_matrix(x)
    pattern, size = model.layout.pattern, x.shape[1]
    dense = torch.zeros(x.shape[0], size, size, dtype=torch.float64)
    dense[:, pattern.rows, pattern.cols] = values.t()
    for k in range(0, size, 5):
        step = torch.zeros_like(x)
        step[:, k] = 1e-6
        column = (balance.residual(x + step) - balance.residual(x - step)) / 2e-6
        scale = dense.abs().amax((1, 2), keepdim=False)[:, None]
        assert ((dense[:, :, k] - column).abs() / scale).max() < 1e-6  # truncation and rounding of differences


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


# ---- what is refused ---------------------------------------------------------------------------------------------


class Constant(OwnDamping):
    """Damping that claims not to change within a step."""

    constant = True


class Detached(forces.Force):
    """A force that leaves torch on its way."""

    def forward(self, state, control):
        """Return a spring computed by NumPy."""
        return torch.as_tensor(-3.0 * state.q.detach().numpy())


class Dropping(forces.LocalForce):
    """A force with dropout."""

    def __init__(self):
        super().__init__(reach=0)
        self.dropout = nn.Dropout(0.5)

    def nodal_force(self, state, control):
        """Return a damping force with dropout."""
        return self.dropout(-0.1 * state.node_velocities)


class FarReaching(forces.LocalForce):
    """A force between neighbours that claims a reach of zero."""

    def __init__(self):
        super().__init__(reach=0)

    def nodal_force(self, state, control):
        """Return differences of positions."""
        return -0.1 * state.positions.diff(dim=1, prepend=state.positions[:, :1])


class WrongShape(forces.Force):
    """A force on nodes where one on dofs is due."""

    def forward(self, state, control):
        """Return (B, N, 3)."""
        return -state.node_velocities


class Hidden(forces.Force):
    """A damping whose rates are one for each robot, without a word of it."""

    def __init__(self, rate):
        super().__init__()
        self.rate = nn.Parameter(rate)

    def forward(self, state, control):
        """Return the damping."""
        return self.body.on_nodes(-(self.rate * state.velocity[:, : 3 * state.n_nodes]).unflatten(1, (-1, 3)))


class Misnamed(Hidden):
    """... with the name, but a plain attribute."""

    per_robot = ("rate",)

    def __init__(self, rate):
        forces.Force.__init__(self)
        self.rate = rate


class Half(forces.Force):
    """A force that says where its derivatives stand, and not what they are."""

    def forward(self, state, control):
        """Return nothing."""
        return torch.zeros_like(state.q)

    def blocks(self):
        """Return none."""
        return []


RATES = torch.full((8, 1), 0.1, dtype=torch.float64)
REFUSED = {
    "constant": (Constant, "constant = True, but changes with velocity"),
    "numpy": (Detached, "leaves torch"),
    "dropout": (Dropping, "dropout"),
    "reach": (FarReaching, "larger reach"),
    "shape": (WrongShape, r"expected shape \(B, n\)"),
    "per robot": (lambda: Hidden(RATES), r"per_robot; there is Hidden.rate \(8, 1\)"),
    "plain attribute": (lambda: Misnamed(RATES), "Misnamed.rate: named in per_robot, but it is neither"),
    "half": (Half, "there is no derivatives"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_force_that_breaks_its_claims_is_refused(name):
    """Refuse at finalize, by the force's name."""
    make, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        rod(make())


class WrongDensity(Energy):
    """A density summed over the springs."""

    def density(self, strain):
        """Return (B,)."""
        return (1e-3 * strain[0] ** 2).sum(0)


class WrongHessian(Energy):
    """A density in closed form with a wrong second derivative."""

    closed_form = True

    def density(self, strain):
        """Return k^4."""
        return 1e-4 * strain[0] ** 4 + 0 * strain[1]

    def derivatives(self, strain):
        """Return the right slope and a wrong curvature."""
        none = [None] * len(strain)
        zero = torch.zeros_like(strain[0])
        return [4e-4 * strain[0] ** 3, zero, zero], [[4e-4 * strain[0] ** 2, None, None], none, none]


@pytest.mark.parametrize(("cls", "message"), [(WrongDensity, "WrongDensity"), (WrongHessian, "second derivatives")])
def test_an_energy_that_breaks_its_claims_is_refused(cls, message):
    """Refuse at finalize, by the energy's name."""
    with pytest.raises(InputError, match=message):
        rod(energy=cls())


class Late(forces.LocalForce):
    """A force that is right at first and then, once it is told, not deterministic or of a larger reach."""

    def __init__(self):
        super().__init__(reach=0)
        self.fault = ""

    def nodal_force(self, state, control):
        """Return a spring with a fault."""
        x = state.positions
        if self.fault == "random":
            return -50.0 * (x - self.body.nodes) * torch.rand_like(x)
        if self.fault == "reach":
            return -3e4 * (x - x.flip(1))
        return -5.0 * (x - self.body.nodes)


@pytest.mark.parametrize(("fault", "message"), [("random", "two evaluations"), ("reach", "larger reach")])
def test_a_failed_step_names_the_hook(fault, message):
    """Say which force is wrong where a step fails with it: in a warning, and in the error that is asked for."""
    force = Late()
    model = rod(force, batch=7)
    state = moving(model, 7)
    force.fault = fault
    integrator = ImplicitEuler(0.02, max_iterations=6)
    with pytest.warns(RuntimeWarning, match=f"Late.*{message}"):
        _, info = integrator.step(model, state)
    assert not info.converged.all()
    with pytest.raises(SimulationError, match=f"Late.*{message}"):
        integrator.step(model, state, throw=True)


def test_gradients_by_a_wrong_matrix_are_refused():
    """Refuse a gradient where a step converged in spite of a matrix that lacks derivatives."""

    class Pulling(Late):
        """A weak spring to the other end."""

        def nodal_force(self, state, control):
            """Return it."""
            x = state.positions
            return -1e-3 * (x - x.flip(1)) if self.fault else torch.zeros_like(x)

    force = Pulling()
    model = rod(force)
    force.fault = "reach"
    start = moving(model)
    velocity = start.velocity.clone().requires_grad_()
    after, info = ImplicitEuler(0.02, max_iterations=200).step(model, start.replace(velocity=velocity))
    assert info.converged.all()
    with pytest.raises(InputError, match="Pulling.*larger reach"):
        after.q.sum().backward()


# ---- tensors that a step does not know ---------------------------------------------------------------------------


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


def test_a_late_latent_is_refused_in_the_backward_pass():
    """Refuse a tensor that came after the first recorded step."""
    model = rod(Gain("attribute", torch.tensor(0.3, dtype=torch.float64)))
    state = moving(model).detach()
    velocity = state.velocity.clone().requires_grad_()
    ImplicitEuler(0.02).step(model, state.replace(velocity=velocity))
    model.forces[0].latent = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    after, _ = ImplicitEuler(0.02).step(model, state.replace(velocity=velocity))
    with pytest.raises(InputError, match="Gain.latent"):
        after.q.sum().backward()


# ---- any number of robots ----------------------------------------------------------------------------------------


class Directed(forces.LocalForce):
    """A damping by a matrix (B, 3, 3) of each robot's own."""

    per_robot = ("matrix",)

    def __init__(self, matrix):
        super().__init__(reach=0)
        self.matrix = nn.Parameter(matrix, requires_grad=False)

    def nodal_force(self, state, control):
        """Return -matrix u."""
        return -state.node_velocities @ self.matrix.mT


def test_tensors_of_three_dimensions_are_split():
    """Step robots in parts, each with its own matrix: as alone."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(5, 3, 3, dtype=torch.float64, generator=generator)
    matrix = noise @ noise.mT
    model = rod(Directed(matrix))
    state = moving(model, 5)
    whole, info = ImplicitEuler(0.02, chunk=2).step(model, state)
    assert info.converged.all()
    for k in range(5):
        alone = rod(Directed(matrix[k : k + 1]))
        after, _ = ImplicitEuler(0.02).step(alone, state.rows(slice(k, k + 1)))
        assert (after.q[0] - whole.q[k]).abs().max() < 1e-11  # residuals of 1e-8 N on a rod of 1e3 N/m and more


# ---- what a caller should hear of --------------------------------------------------------------------------------


def test_unroll_warns_of_failed_robots_and_throws_where_asked():
    """Name the robots and the reason."""
    model = rod(forces.Gravity((0, 0, -9.81)))
    state = moving(model, 3)
    state = state.replace(velocity=state.velocity * torch.tensor([[1.0], [1e9], [1.0]]))
    integrator = ImplicitEuler(0.02, max_iterations=4)
    with pytest.warns(RuntimeWarning, match="unroll: robot 1: .*last good state"):
        run = unroll(model, state, integrator, 2)
    assert run.status.tolist()[0] == run.status.tolist()[2] == 0
    with pytest.raises(SimulationError, match="unroll: step 1 of 2: robot 1"):
        unroll(model, state, integrator, 2, throw=True)


def test_a_stiffness_below_zero_is_refused_by_name():
    """Refuse the step after an optimiser drove a stiffness below zero; other robots' constants are not touched."""
    model = rod(batch=3)
    stiffness = model.term("bend_twist").energy.EI1.requires_grad_(True)
    state = moving(model, 3).detach()
    ImplicitEuler(0.02).step(model, state)
    with torch.no_grad():
        stiffness[1] = -0.1
    with pytest.raises(InputError, match=r"bend_twist.EI1: expected 0 or more, got -0.1; .*scaled"):
        ImplicitEuler(0.02).step(model, state)
    with torch.no_grad():
        stiffness[1] = float("nan")
    with pytest.raises(InputError, match=r"bend_twist.EI1"):
        ImplicitEuler(0.02).step(model, state)


def test_copies_of_a_model_keep_their_hooks():
    """Step a copy of a model with a hook like the model itself."""
    model = rod(Swirl())
    state = moving(model)
    first, _ = ImplicitEuler(0.02).step(model, state)
    second, _ = ImplicitEuler(0.02).step(copy.deepcopy(model), state)
    assert torch.equal(first.q, second.q)
