"""What users write: each robot for itself, terms that start at zero, any number of robots, and what is named."""

import copy

import pytest
import torch
from torch import nn

from tests.hooked import (
    Swirl,
    moving,
    rod,
)
from torchdismech import (
    Circle,
    ImplicitEuler,
    InputError,
    Material,
    RobotBuilder,
    SimulationError,
    contact,
    elastic,
    forces,
    straight,
    unroll,
)
from torchdismech.testing import check_energy

# ---- each robot for itself, and the state left alone ----------------------------------------------------------------


class Pull(forces.LocalForce):
    """A force along x on the nodes of some robots of a batch: (first, one after the last)."""

    def __init__(self, robots):
        super().__init__(reach=0)
        self.robots = slice(*robots)

    def nodal_force(self, state, control):
        """Return the force (B, N, 3) [N]."""
        force = torch.zeros_like(state.positions)
        force[self.robots] = 0.1 * state.positions[self.robots]
        return force


class Bent(elastic.Energy):
    """An energy of the first robot's springs alone [J/m]."""

    def density(self, strain):
        """Return the densities (springs, B)."""
        return torch.cat([strain[0][:, :1] ** 2, torch.zeros_like(strain[0][:, 1:])], dim=1)


class InPlace(forces.LocalForce):
    """A force that doubles the positions of the state that it is given."""

    def __init__(self):
        super().__init__(reach=0)

    def nodal_force(self, state, control):
        """Return the force (B, N, 3) [N]."""
        positions = state.positions
        positions *= 2
        return 0.01 * positions


@pytest.mark.parametrize("robots", [(0, 1), (-1, None)])
def test_forces_of_one_robot_of_a_batch_are_refused(robots):
    """Refuse what acts on the first robot of a batch alone, and on the last one, and take what acts on all."""
    with pytest.raises(InputError, match="Pull: a robot alone gives other numbers .*: x.0. is the first robot alone"):
        rod(Pull(robots))
    rod(Pull((0, None)))


class Carpet(contact.Obstacle):
    """A floor that pushes the first robot of a batch alone."""

    def forward(self, state, control):
        """Return the force (B, n)."""
        return torch.cat([super().forward(state, control)[:1], torch.zeros_like(state.q[1:])])


def test_obstacles_of_one_robot_of_a_batch_are_refused_by_name():
    """Say which of the obstacles acts on the first robot alone."""
    plane = contact.HalfSpace((0, 0, 1), (0, 0, 1))  # all nodes are below it
    with pytest.raises(InputError, match="obstacle 'red' .Carpet, HalfSpace.: a robot alone gives other numbers"):
        rod(Carpet(plane, contact.Penalty(10.0, 1e-3), name="red"))


def test_energies_of_one_robot_of_a_batch_are_refused():
    """Refuse an energy that only the first robot has."""
    with pytest.raises(InputError, match="Bent .bend_twist.: a robot alone gives other numbers"):
        rod(energy=Bent())


def test_changes_of_the_state_in_place_are_refused():
    """Name the field that a force writes to."""
    with pytest.raises(InputError, match="InPlace: changes State.q in place"):
        rod(InPlace())


def test_energies_are_told_what_they_are_given():
    """Say what an energy is given where it cannot be evaluated, and nothing of tensors that have no part in it."""

    class OfOneTensor(elastic.Energy):
        def density(self, strain):
            return strain[..., 0]

    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(4e-3), Material(1e6, 1000.0))
    builder.add_energy("bend_twist", OfOneTensor())
    with pytest.raises(InputError, match="a tuple of its strains, kappa1, kappa2, tau, each .stencils, B.") as told:
        builder.finalize()
    assert "per_robot" not in str(told.value)
    with pytest.raises(InputError, match="a tuple of its strains"):
        check_energy(OfOneTensor(), 3)


# ---- what starts at zero -----------------------------------------------------------------------------------------


class Together(forces.LocalForce):
    """A force from the mean of all robots, by a gain."""

    def __init__(self, gain):
        super().__init__(reach=0, explicit=True)
        self.gain = nn.Parameter(torch.full((), gain, dtype=torch.float64))

    def nodal_force(self, state, control):
        """Return the force (B, N, 3) [N]."""
        return self.gain * (state.positions - state.positions.mean(0, keepdim=True))


class TogetherBent(elastic.Energy):
    """A bending law that stiffens with the mean curvature of all robots, by a gain [J/m]."""

    def __init__(self, gain):
        super().__init__()
        self.gain = nn.Parameter(torch.full((), gain, dtype=torch.float64))

    def density(self, strain):
        """Return the densities (springs, B)."""
        return self.gain * strain[0] ** 2 * (1 + strain[0].abs().mean().detach())


class ByNetwork(forces.LocalForce):
    """A network on positions with something between its layers; `scale` is the size of what it starts from."""

    def __init__(self, scale, between, explicit=False):
        super().__init__(reach=0, explicit=explicit)
        generator = torch.Generator().manual_seed(0)
        self.network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), between, nn.Linear(8, 3)).double()
        for weight in self.network[3].parameters():
            nn.init.normal_(weight, generator=generator).data.mul_(scale)
        self.evaluations = 0

    def nodal_force(self, state, control):
        """Return the force (B, N, 3) [N]."""
        self.evaluations += 1
        return self.network(state.positions.flatten(0, 1)).unflatten(0, (-1, state.n_nodes))


@pytest.mark.parametrize("gain", [0.0, 1.0])
@pytest.mark.parametrize(
    ("built", "message"),
    [
        (lambda gain: rod(Together(gain)), "Together: a robot alone gives other numbers"),
        (lambda gain: rod(energy=TogetherBent(gain)), "TogetherBent .bend_twist.: a robot alone gives other numbers"),
        (lambda gain: rod(ByNetwork(gain, nn.BatchNorm1d(8))), "ByNetwork: a robot alone .* call eval.. on a BatchN"),
        (lambda gain: rod(ByNetwork(gain, nn.Dropout(0.5), explicit=True)), "ByNetwork: two evaluations .* differ"),
    ],
    ids=["mean force", "mean energy", "batch norm", "dropout"],
)
def test_learned_terms_that_start_at_zero_are_refused_like_others(built, message, gain):
    """Refuse what couples robots or draws numbers, and say where it shows with other weights alone."""
    with pytest.raises(InputError, match=message) as told:
        built(gain)
    assert ("with other weights" in str(told.value)) is (gain == 0)


def test_a_look_at_other_weights_leaves_no_trace():
    """Keep weights, buffers, attributes and random numbers, also where the look ends in a refusal."""
    torch.manual_seed(3)
    for between, right in ((nn.LayerNorm(8), True), (nn.BatchNorm1d(8).eval(), True), (nn.Dropout(0.5), False)):
        force = ByNetwork(0.0, between, explicit=True)
        held, drawn = copy.deepcopy(force.state_dict()), torch.random.get_rng_state()
        if right:
            rod(force)
        else:
            with pytest.raises(InputError):
                rod(force)
        assert torch.equal(torch.random.get_rng_state(), drawn)
        assert all(torch.equal(value, force.state_dict()[name]) for name, value in held.items())
        assert all(isinstance(weight, nn.Parameter) for weight in force.network[3]._parameters.values())


def test_running_statistics_are_not_those_of_a_look():
    """Keep them, also where a force in its mode of training is refused: it has to be the same in eval() afterwards."""
    force = ByNetwork(0.0, nn.BatchNorm1d(8), explicit=True)
    held = copy.deepcopy(force.state_dict())
    with pytest.raises(InputError, match="with other weights"):
        rod(force)
    assert force.evaluations == 4  # with its own weights: all robots twice, and two of them alone
    assert all(torch.equal(value, force.state_dict()[name]) for name, value in held.items())


def test_a_mode_that_is_refused_leaves_a_model_as_it_was():
    """Take the same steps after a train() that was refused; running statistics were those of trial states, silently."""
    model = rod(ByNetwork(1.0, nn.BatchNorm1d(8).eval(), explicit=True))
    step, state = ImplicitEuler(0.01).step, model.initial_state(2)
    expected = step(model, state, throw=True)[0]
    model.train()
    with pytest.raises(InputError, match="BatchNorm"):
        step(model, state)
    assert torch.equal(step(model.eval(), state, throw=True)[0].q, expected.q)


def test_weights_that_a_force_refuses_are_not_held_against_it():
    """Build a force that cannot be evaluated with other weights."""

    class Checked(Together):
        def nodal_force(self, state, control):
            if self.gain not in (0.0, 1.0):
                raise ValueError("the gain is 0 or 1")
            return self.gain * state.positions

    for gain in (0.0, 1.0):
        rod(Checked(gain))


def test_other_weights_are_not_negative_where_a_force_says_so():
    """Try numbers from zero up alone."""
    tried = []

    class Bounded(forces.LocalForce):
        not_negative = ("gain",)

        def __init__(self):
            super().__init__(reach=0, explicit=True)
            self.gain = nn.Parameter(torch.zeros(7, 3, dtype=torch.float64))

        def nodal_force(self, state, control):
            tried.append(self.gain.detach())
            return self.gain.sqrt() * state.positions

    rod(Bounded())
    assert min(float(gain.min()) for gain in tried) == 0.0 < max(float(gain.max()) for gain in tried)


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


class Stiffer(elastic.Energy):
    """An energy of bending that grows with the fourth power."""

    def density(self, strain):
        """Return psi (S, B)."""
        return 1e-6 * strain[0] ** 4


@pytest.mark.parametrize("whose", [Directed, Stiffer])
@pytest.mark.parametrize(
    ("names", "message"),
    [(("matrx",), "per_robot names 'matrx', which it does not have"), ("matrix", "per_robot is the text 'matrix'")],
)
def test_names_of_tensors_that_there_are_not(whose, names, message):
    """Refuse a misspelt name in `per_robot`, which ended in an AttributeError about the model."""
    part = Directed(torch.eye(3, dtype=torch.float64)[None]) if whose is Directed else Stiffer()
    part.per_robot = names
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(5e-3), Material(1e6, 1000.0))
    if whose is Directed:
        builder.add_force(part)
    else:
        builder.add_energy("bend_twist", part)
    with pytest.raises(InputError, match=f"^{whose.__name__}: {message}"):
        builder.finalize()


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
    with pytest.raises(SimulationError, match="unroll: steps 1 to 3 of 4: robot 1"):
        unroll(model, state, integrator, 4, checkpoint_every=3, throw=True)


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, of TorchScript
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("made", "told"), [(torch.jit.script, "one of TorchScript"), (torch.compile, r"what torch\.compile made of one")]
)
def test_compiled_networks_are_refused_by_name(made, told, nested):
    """Refuse what keeps its tensors, or its derivatives, out of reach."""

    class Wind(forces.LocalForce):
        """A network of positions."""

        def __init__(self):
            super().__init__(reach=0)
            net = made(nn.Linear(3, 3).double())
            self.net = nn.Sequential(nn.Tanh(), net) if nested else net

        def nodal_force(self, state, control):
            """Return a push."""
            return self.net(state.positions)

    with pytest.raises(InputError, match=rf"^Wind\.net{'.1' * nested}: expected a module of Python, got {told}"):
        rod(Wind())
