"""One law, shape or path that several contacts are given: each has constants of its own."""

import copy

import pytest
import torch
from torch import nn

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    InputError,
    Material,
    RobotBuilder,
    constant_curvature,
    forces,
    straight,
    trainable,
)
from torchdismech.contact import (
    Complementarity,
    Friction,
    HalfSpace,
    Obstacle,
    Path,
    Penalty,
    SelfContact,
    Sphere,
)


def lying(*contacts, **options):
    """Return a rod that lies on a floor at z = 0, with what it may touch."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0.0019), (0.1, 0, 0.0019), 5), Circle(2e-3), Material(1e6, 1100.0))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    for contact in contacts:
        builder.add_contact(contact)
    return builder.finalize(**options)


class Given:
    """One law, shape and path, and what is made of them."""

    def __init__(self):
        self.law, self.friction = Penalty(50.0, 1e-4), Friction(0.3, 1e-3)
        self.plane, self.path = HalfSpace((0, 0, 0), (0, 0, 1)), Path([0.0, 1.0], [[0, 0, 0], [0, 0, 0]])

    def obstacle(self, name="floor"):
        """Return an obstacle made of them."""
        return Obstacle(self.plane, self.law, self.friction, self.path, name)

    def model(self, **options):
        """Return a robot on a floor that is there twice, and whose own parts touch by the same law."""
        contacts = [self.obstacle(), self.obstacle("other"), SelfContact(self.law, self.friction)]
        return lying(*contacts, **options)


OF_ONE = ["floor.stiffness", "floor.friction", "floor.point", "floor.displacements", "self_contact.stiffness"]


@pytest.mark.parametrize("name", OF_ONE)
def test_training_one_contact_leaves_the_others(name):
    """Change a constant of one contact of one model alone; every other model trains its own."""
    given = Given()
    one, two = given.model(), given.model()
    before = {n: trainable.value(one, n).clone() for n in trainable.constants(one)}
    with torch.no_grad():
        trainable.shifted(one, [name], unit=1.0).shift.fill_(0.5)
    trainable.shifted(two, [name], unit=1.0)
    moved = [n for n in before if not torch.equal(trainable.value(one, n), before[n])]
    assert moved == [name]
    assert all(torch.equal(trainable.value(two, n), before[n]) for n in before)


def test_controls_set_one_obstacle():
    """Let the floor carry what its own stiffness says, whatever that of another is, in either order."""
    given = Given()
    roof = Obstacle(HalfSpace((0, 0, 0.1), (0, 0, -1)), given.law, given.friction, name="roof")
    model = lying(given.obstacle(), roof)

    def load(**stiffness):
        numbers = {f"{n}.stiffness": torch.tensor([[k]], dtype=torch.float64) for n, k in stiffness.items()}
        _, info = ImplicitEuler(1e-3).step(model, model.initial_state(), Control(values=numbers))
        return float(info.contact["load/floor"])

    assert load(floor=500.0, roof=1.0) == load(roof=1.0, floor=500.0) == load(floor=500.0)
    assert load(roof=1.0) == load() < load(floor=500.0)


def test_other_dtypes():
    """Leave the constants of a model in double precision when another is made in single precision."""
    given = Given()
    model = given.model()
    given.model(dtype=torch.float32)
    places = trainable.constants(model)
    assert {getattr(*places[name]).dtype for name in OF_ONE} == {torch.float64}
    assert given.law.stiffness.dtype == torch.float64


def test_what_is_given_stays_a_description():
    """Change what was given, and have a robot built from then on have that, but none that was built before."""
    given = Given()
    before = given.model()
    given.law.stiffness.data.fill_(80.0)
    after = given.model()
    assert [float(trainable.value(m, "floor.stiffness")) for m in (before, after)] == [50.0, 80.0]


class Learned(Penalty):
    """A law with a network, which is its caller's to train."""

    def __init__(self, network=None):
        super().__init__(50.0, 1e-4)
        self.network = nn.Linear(1, 1).double() if network is None else network

    def energy(self, gap, stiffness, tolerance):
        """Return the penalty's potential, scaled by what the network has learned."""
        return self.network.weight.exp()[0, 0] * super().energy(gap, stiffness, tolerance)

    def derivatives(self, gap, stiffness, tolerance):
        """Return its derivatives, scaled alike."""
        scale = self.network.weight.exp()[0, 0]
        slope, curvature = super().derivatives(gap, stiffness, tolerance)
        return scale * slope, scale * curvature


FLOOR = ((0, 0, 0), (0, 0, 1))


def test_what_is_trained_is_no_copy():
    """Give gradients to the network of a law of one's own that the caller holds."""
    law = Learned()
    model = lying(Obstacle(HalfSpace(*FLOOR), law, name="floor"))
    state, _ = ImplicitEuler(1e-3).step(model, model.initial_state())
    state.positions[..., 2].sum().backward()
    assert float(law.network.weight.grad.abs()) > 0


@pytest.mark.parametrize(
    ("other", "label"),
    [
        (lambda law: Obstacle(HalfSpace(*FLOOR), law, name="other"), "obstacle 'other'"),
        (lambda law: SelfContact(law), "SelfContact 'self_contact'"),
    ],
)
@pytest.mark.parametrize("models", [1, 2])
def test_what_is_trained_belongs_to_one_contact(other, label, models):
    """Refuse the second contact with a law that is no copy, in the same model or another; two may hold one network."""
    law = Learned()
    floor, other_contact = Obstacle(HalfSpace(*FLOOR), law, name="floor"), other(law)
    with pytest.raises(InputError, match=f"^{label}: this Learned belongs to another model, or to another part"):
        [lying(*contacts) for contacts in ([[floor, other_contact]] if models == 1 else [[floor], [other_contact]])]
    network = Learned().network
    lying(Obstacle(HalfSpace(*FLOOR), Learned(network), name="floor"), other(Learned(network)))


def test_copies_of_a_model():
    """Copy a model with a law that is trained, whose copy has a network of its own."""
    model = lying(Obstacle(HalfSpace(*FLOOR), Learned(), name="floor"))
    twin = copy.deepcopy(model)
    assert twin.obstacles[0].law.response.network is not model.obstacles[0].law.response.network


def test_arms():
    """Give each arm constants of its own of an obstacle that both are given."""
    ball = Obstacle(Sphere((0, 0, 0.5), 0.1), Complementarity(), Friction(0.3), name="ball")
    arms = [constant_curvature.PneumaticArm([0.2], [0.1], [0.02], [50.0, 1.0, 1.0], obstacles=[ball]) for _ in range(2)]
    trainable.shifted(arms[0], ["ball.radius"], unit=0.1).shift.data.fill_(1.0)
    assert [round(float(trainable.value(arm, "ball.radius")), 3) for arm in arms] == [0.2, 0.1]
