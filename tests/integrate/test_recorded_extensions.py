"""Recorded steps of robots with stencils, shapes, laws of contact and fields of users' own, which say `records`."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.integrate.recordings import assert_same, rods_on_cpu
from torchdismech import (
    Circle,
    ImplicitEuler,
    Material,
    RobotBuilder,
    contact,
    elastic,
    forces,
    magnetics,
    rollout,
    straight,
)
from torchdismech.integrate.recorded import gradients as recorded_gradient
from torchdismech.integrate.recorded import recording
from torchdismech.integrate.recorded.recordable import records_all_users_code, why_code_unrecorded, why_steps_unrecorded

STEPS = 4
WITHIN = 1e-11  # autograd adds up gradients in another order than loops do


class Strings(elastic.Stencil):
    """By how much nodes are farther apart than their strings are long."""

    records = True
    per_robot = ("length",)

    def __init__(self):
        first, second, one = np.array([0, 2]), np.array([6, 8]), np.ones(2)
        super().__init__([[(3 * second + axis, one), (3 * first + axis, -one)] for axis in range(3)], ["longer"])
        self.length = nn.Parameter(torch.tensor([0.13, 0.14], dtype=torch.float64))
        self.power = 1.0

    def constants(self, state, control):
        """Return the lengths (S, 1)."""
        return (elastic.batch_last(self.length),)

    def strain(self, local, length):
        """Return the strain (S, B) of components (S, B)."""
        x, y, z = local
        return (torch.sqrt(x * x + y * y + z * z) - self.power * length,)


class StringsInClosedForm(Strings):
    """The same, with derivatives in closed form."""

    records = closed_form = True

    def derivatives(self, local, length):
        """Return strain, first and second derivatives."""
        distance = torch.sqrt(sum(x * x for x in local))
        unit = [x / distance for x in local]

        def second(weight):
            return [weight * (float(i == j) - unit[i] * unit[j]) / distance for i, j in self.pairs]

        return (distance - self.power * length,), [unit], second


class SilentStrings(Strings):
    """Strings of a class that inherits from one that says `records`, and does not say so itself."""


class SilentStringsInClosedForm(StringsInClosedForm):
    """The same, with derivatives in closed form."""


class Ball(contact.Shape):
    """A ball."""

    records = True
    per_robot = ("center",)

    def __init__(self):
        super().__init__()
        self.center = nn.Parameter(torch.tensor([0.1, 0.0, -0.02], dtype=torch.float64))
        self.radius = 0.045

    def distance_and_derivatives(self, points):
        """Return distances, normals and curvatures."""
        away = points - (self.center if self.center.dim() == 1 else self.center[:, None])
        distance = away.norm(dim=-1)
        normal = away / distance[..., None]
        across = torch.eye(3, dtype=points.dtype) - normal[..., :, None] * normal[..., None, :]
        return distance - self.radius, normal, across / distance[..., None, None]

    @property
    def depth(self):
        """The radius."""
        return torch.tensor(self.radius, dtype=torch.float64)


class SilentBall(Ball):
    """A ball that does not say `records` itself."""


class Cubic(contact.Potential):
    """A potential that grows with the third power of the overlap."""

    records = True

    def energy(self, gap, stiffness, tolerance):
        """Return it."""
        return torch.where(gap >= tolerance, 0.0, stiffness * (tolerance - gap) ** 3 / (3 * tolerance))

    def derivatives(self, gap, stiffness, tolerance):
        """Return both derivatives by the gap."""
        over = tolerance - gap
        slope = torch.where(gap >= tolerance, 0.0, -stiffness * over**2 / tolerance)
        return slope, torch.where(gap >= tolerance, 0.0, 2 * stiffness * over / tolerance)

    @staticmethod
    def slipping(speed, slip_velocity):
        """Return how friction sets in: as it does with a barrier."""
        return contact.Barrier.slipping(speed, slip_velocity)


class SilentCubic(Cubic):
    """A law that does not say `records` itself."""


class Wave(magnetics.Field):
    """A field that varies in space."""

    records = True
    per_robot = ("strength",)

    def __init__(self):
        super().__init__()
        self.strength = nn.Parameter(torch.tensor([[0.02]], dtype=torch.float64))

    def forward(self, position, time):
        """Return the field (B, E, 3)."""
        x, _, z = position.unbind(-1)
        return self.strength.unsqueeze(-1) * torch.stack([torch.sin(9 * z), 0 * x, torch.cos(9 * x)], dim=-1)


class SilentWave(Wave):
    """A field that does not say `records` itself."""


class Network(nn.Module):
    """A field by a small network."""

    records = True

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()

    def forward(self, position, time):
        """Return the field (B, E, 3)."""
        return 0.05 * self.layers(10 * position)


class SilentNetwork(Network):
    """A network that does not say `records` itself."""


def strung(stencil):
    """Return three rods with strings, which pull from the beginning on."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0.05), 9), Circle(2e-3), Material(stiffness(), 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    law = elastic.LinearElastic({"k": torch.tensor(5.0, dtype=torch.float64)})
    builder.add_term(elastic.ElasticTerm("strings", stencil, law, measure=torch.ones(2, dtype=torch.float64)))
    return builder.finalize(compile=False)


def stiffness():
    """Return Young's moduli (B, 1) of three robots [Pa]."""
    return torch.linspace(1e6, 2e6, 3, dtype=torch.float64)[:, None]


def on(shape, law):
    """Return three rods that lie on a shape, with friction."""
    friction = contact.Friction(0.4, 1e-3)
    return rods_on_cpu(3, contact.Obstacle(shape, law, friction, name="thing"))


def ball(shape):
    """Return three rods on a ball of a user's."""
    return on(shape(), contact.Penalty(1e2, 2e-3))


def pushed(law):
    """Return three rods on a ball of the library's, which pushes by a law of a user's."""
    return on(contact.Sphere((0.1, 0, -0.02), 0.045), law(1e2, 2e-3))


def magnetised(field):
    """Return three magnetised rods in a field."""
    return rods_on_cpu(3, magnetics.Magnetic((1e3, 0.0, 0.0), field))


# by what is the user's: robots with what says `records` and without, and the tensor that is trained
CASES = {
    "stencil": (lambda: strung(Strings()), lambda: strung(SilentStrings()), "strings.length"),
    "closed form": (
        lambda: strung(StringsInClosedForm()),
        lambda: strung(SilentStringsInClosedForm()),
        "strings.length",
    ),
    "shape": (lambda: ball(Ball), lambda: ball(SilentBall), "thing.center"),
    "law": (lambda: pushed(Cubic), lambda: pushed(SilentCubic), "thing.stiffness"),
    "field": (lambda: magnetised(Wave()), lambda: magnetised(SilentWave()), "Magnetic.field.strength"),
    "network": (
        lambda: magnetised(Network()),
        lambda: magnetised(SilentNetwork()),
        "forces.1.field.module.layers.0.bias",
    ),
}


@pytest.fixture(autouse=True)
def _from_the_first_on(monkeypatch):
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
    monkeypatch.setattr(recorded_gradient, "PASSES_BEFORE_RECORDING", 1)


def moved(model, trained):
    """Return what steps lead to, and the gradients by a velocity and by what is trained."""
    state = model.initial_state(batch=3)
    torch.manual_seed(0)
    velocity = (0.1 * torch.rand_like(state.velocity)).requires_grad_()
    state, found = state.replace(velocity=velocity), []
    for _ in range(STEPS):
        state, info = ImplicitEuler(5e-3).step(model, state)
        found += [*state.fields(), info.status, info.iterations]
    loss = (state.q**2).sum() + state.velocity.sum()
    return [x.detach() for x in found] + list(torch.autograd.grad(loss, [velocity, trained]))


def trained_twice(model, name):
    """Return what steps lead to before and after an optimiser has changed a tensor in place."""
    trained = getattr(*model.places[name]) if name in model.places else model.get_parameter(name)
    trained.requires_grad_()
    found = moved(model, trained)
    with torch.no_grad():
        trained.mul_(1.05)
    return found + moved(model, trained)


@pytest.mark.parametrize("case", CASES)
def test_they_are_the_same(case):
    """Give the same states to the bit, and gradients that are the same but for rounding."""
    recorded, plain, name = CASES[case]
    recorded, plain = recorded(), plain()
    found, expected = trained_twice(recorded, name), trained_twice(plain, name)
    assert recorded.recordings and not plain.recordings
    assert why_code_unrecorded(recorded) is None and "does not say `records`" in why_code_unrecorded(plain)
    assert all(kind.recording is not None for kind in recorded.recordings)
    assert any(passes.recording is not None for kind in recorded.recordings for passes in kind.backward.values())
    assert_same(found, expected, within=WITHIN)
    assert any(not torch.equal(a, b) for a, b in zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True))


@pytest.mark.parametrize("case", CASES)
def test_runs_take_several_steps_at_once(case):
    """Ask nothing of the user's code between two steps of a run, as nothing of it can have changed."""
    recorded, plain, _ = CASES[case]
    recorded, plain = recorded(), plain()
    assert records_all_users_code(recorded) and not records_all_users_code(plain)
    runs = [rollout(m, m.initial_state(3), ImplicitEuler(5e-3), steps=8, every=8) for m in (recorded, plain)]
    assert torch.equal(runs[0].positions, runs[1].positions) and not runs[0].failed.any()


@pytest.mark.parametrize(
    ("case", "owner", "name", "value"),
    [("stencil", "strings", "power", 1.1), ("shape", "thing", "radius", 0.047)],
)
def test_settings_that_change_are_seen(case, owner, name, value):
    """Take a step of another kind, with a recording of its own."""
    found = []
    for make in CASES[case][:2]:
        model = make()
        own = model.term(owner).stencil if owner == "strings" else model.forces[1].shape
        found.append(moved(model, own.length if owner == "strings" else own.center))
        setattr(own, name, value)
        found[-1] += moved(model, own.length if owner == "strings" else own.center)
    assert_same(*found, within=WITHIN)


def test_what_could_change_unseen_is_not_recorded():
    """Take steps without recordings where a class says `records` and holds a list."""
    model = strung(Strings())
    model.term("strings").stencil.history = []
    ImplicitEuler(5e-3).step(model, model.initial_state(3))
    assert not model.recordings


def test_what_reads_numbers_is_said():
    """Go on without a recording, and name the class and what it does."""

    class Reading(Ball):
        records = True

        def distance_and_derivatives(self, points):
            distance, normal, curvature = super().distance_and_derivatives(points)
            return distance * (1.0 if float(distance.detach().max()) < 1e3 else 2.0), normal, curvature

    model, plain = ball(Reading), ball(SilentBall)
    with pytest.warns(RuntimeWarning, match="Reading: says `records`, but no recording holds it, .*reads numbers"):
        state, _ = ImplicitEuler(5e-3).step(model, model.initial_state(3))
    expected, _ = ImplicitEuler(5e-3).step(plain, plain.initial_state(3))
    assert torch.equal(state.q, expected.q)


def test_on_a_gpu_shapes_and_laws_are_held_too():
    """Say so of models on a GPU, for which the "meta" device stands."""
    for case in ("shape", "law"):
        recorded, plain, _ = CASES[case]
        assert why_steps_unrecorded(recorded().to("meta")) is None
        assert "does not say `records`" in why_steps_unrecorded(plain().to("meta"))


class Odd(Strings):
    """Strings whose strain depends on a matrix, on a parameter that may be missing, on slots and on a dictionary."""

    records = True

    def __init__(self):
        super().__init__()
        self.register_buffer("matrix", torch.tensor([[1.0, 0.2, 0.0], [0.0, 1.0, 0.1], [0.05, 0.0, 1.0]]).double())
        self.register_parameter("bias", None)
        self.left, self.right = nn.Linear(1, 1, dtype=torch.float64), None
        self.sign, self.nested = 0.0, ((1.0, 2.0), 3)

    def strain(self, local, length):
        """Return the strain (S, B)."""
        (longer,) = super().strain(torch.einsum("ij,jsb->isb", self.matrix, torch.stack(local)).unbind(), length)
        if self.bias is not None:
            longer = longer + self.bias
        for slot, factor in ((self.left, 0.01), (self.right, -0.02)):
            if slot is not None:
                longer = longer + factor * slot(longer[..., None])[..., 0]
        return (longer + 1e-3 * torch.copysign(torch.ones((), dtype=torch.float64), torch.tensor(self.sign)),)


class SilentOdd(Odd):
    """The same, of a class that does not say `records` itself."""


def transposed(stencil):
    """Give a stencil another view of its own matrix."""
    stencil.matrix = stencil.matrix.T


def moved_over(stencil):
    """Move a module from one slot to the other."""
    stencil.left, stencil.right = None, stencil.left


CHANGES = {
    "another view": transposed,
    "another view in place": lambda stencil: stencil.matrix.t_(),
    "the first row for all": lambda stencil: setattr(stencil, "matrix", stencil.matrix[:1].expand(3, 3)),
    "a parameter that was missing": lambda stencil: setattr(
        stencil, "bias", nn.Parameter(torch.tensor(0.01, dtype=torch.float64))
    ),
    "another slot": moved_over,
    "the sign of zero": lambda stencil: setattr(stencil, "sign", -0.0),
    "a tuple in a tuple": lambda stencil: setattr(stencil, "nested", ((2.0, 2.0), 3)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_odd_changes_are_seen(change):
    """Take the steps that are taken without recordings, after the change, too."""
    found = []
    for kind in (Odd, SilentOdd):
        torch.manual_seed(0)
        model = strung(kind())
        stencil = model.term("strings").stencil
        first = moved(model, stencil.length)
        assert bool(model.recordings) == (kind is Odd)
        CHANGES[change](stencil)
        found.append(first + moved(model, stencil.length))
    assert_same(*found, within=WITHIN)


def test_a_parameter_that_is_gone_makes_another_kind():
    """Go on with a number in its place."""

    class Given(Strings):
        records = True

        def __init__(self):
            super().__init__()
            self.part = nn.Parameter(torch.tensor(0.01, dtype=torch.float64))

        def strain(self, local, length):
            return (super().strain(local, length)[0] + self.part,)

    model = strung(Given())
    stencil = model.term("strings").stencil
    expected = moved(model, stencil.length)
    del stencil.part
    stencil.part = 0.01
    assert_same(moved(model, stencil.length), expected, within=WITHIN)


def test_a_list_in_a_dictionary_of_parameters_is_not_recorded():
    """Take steps without recordings, as it could change unseen."""
    model = strung(Strings())
    model.term("strings").stencil.held = nn.ParameterDict({"list": [1.0]})
    ImplicitEuler(5e-3).step(model, model.initial_state(3))
    assert "which could change unseen" in why_code_unrecorded(model) and not model.recordings
