"""Contact laws that users write: tried by themselves when a model is built, in obstacles and between parts."""

import pytest
import torch
from torch import nn

from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, straight
from torchdismech.contact import Barrier, Friction, HalfSpace, Obstacle, Penalty, Potential, SelfContact
from torchdismech.model import law_trials

ROUGH = Friction(0.3, 1e-3)


class Cubic(Potential):
    """phi = k (tolerance - d)^3 / (3 tolerance), friction as the barrier's."""

    def energy(self, gap, stiffness, tolerance):
        """Return phi."""
        return torch.where(gap >= tolerance, 0.0, stiffness * (tolerance - gap) ** 3 / (3 * tolerance))

    def derivatives(self, gap, stiffness, tolerance):
        """Return both derivatives by the gap."""
        over, apart = tolerance - gap, gap >= tolerance
        slope = torch.where(apart, 0.0, -stiffness * over**2 / tolerance)
        return slope, torch.where(apart, 0.0, 2 * stiffness * over / tolerance)

    slipping = staticmethod(Barrier.slipping)


def over_a_floor(law, friction, dtype=torch.float64):
    """Return the model of a rod above a floor with a law."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0.02), (0.1, 0, 0.02), 6), Circle(2e-3), Material(1e6, 1000.0))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), law, friction, name="floor"))
    return builder.finalize(compile=False, dtype=dtype)


def touching_itself(law, friction, dtype=torch.float64):
    """Return the model of a rod whose parts have a law, far from each other."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0.02), (0.1, 0, 0.02), 6), Circle(2e-3), Material(1e6, 1000.0))
    builder.add_contact(SelfContact(law, friction, name="knot"))
    return builder.finalize(compile=False, dtype=dtype)


PLACES = {"obstacle 'floor'": over_a_floor, "SelfContact 'knot'": touching_itself}


def changed(**methods):
    """Return a Cubic of which some methods are others."""
    return type("Wrong", (Cubic,), methods)(100.0, 1e-3)


def twice(which):
    """Return derivatives of which one or both are twice what they are."""

    def derivatives(self, gap, stiffness, tolerance):
        slope, curvature = Cubic.derivatives(self, gap, stiffness, tolerance)
        return (2 if 0 in which else 1) * slope, (2 if 1 in which else 1) * curvature

    return derivatives


def energy(function):
    """Return an energy made of that of a Cubic and its gap."""
    return lambda self, gap, *constants: function(Cubic.energy(self, gap, *constants), gap)


def slopes(function):
    """Return derivatives made of those of a Cubic and its gap."""
    return lambda self, gap, *constants: function(*Cubic.derivatives(self, gap, *constants), gap)


ENDLESS = {  # it pulls beyond the tolerance
    "energy": lambda _, gap, k, t: 0.5 * k * (t - gap) ** 2,
    "derivatives": lambda _, gap, k, t: (k * (gap - t), k.expand_as(gap)),
}


WRONG = {
    "curvature": (
        {"derivatives": twice({1})},
        r"derivatives\(\): d2phi/dd2 is not the derivative of dphi/dd: at a gap of .* m it is 788\.52 N/m, and "
        r"differences say 394\.26",
    ),
    "slope": ({"derivatives": twice({0, 1})}, r"derivatives\(\): dphi/dd is not the derivative of energy\(\)"),
    "energy as a sum": ({"energy": energy(lambda phi, _: phi.sum())}, r"energy\(\): expected phi, .*; got the shapes"),
    "energy in another dtype": ({"energy": energy(lambda phi, _: phi.half())}, r"expected numbers in torch\.float64"),
    "energy as a number": ({"energy": lambda *_: 0.0}, r"energy\(\): expected phi, a tensor .*; got \['float'\]"),
    "slope alone": ({"derivatives": slopes(lambda slope, *_: slope)}, r"a pair, each a tensor .*; got Tensor"),
    "one axis more": (
        {"derivatives": slopes(lambda slope, curvature, _: (slope[..., None], curvature))},
        r"derivatives\(\): expected dphi/dd and d2phi/dd2, a pair, each a tensor of shape .*; got the shapes",
    ),
    "no methods": ({"energy": Potential.energy}, r"energy\(\) .* cannot be evaluated: .*Wrong has to define energy"),
    "by what is beside": (
        {"energy": energy(lambda phi, _: phi / phi.abs().max())},
        "depends on which others it is evaluated with",
    ),
    "at random": ({"energy": energy(lambda phi, _: phi * torch.rand(()))}, "two evaluations at the same state differ"),
    "that never ends": (ENDLESS, r"phi is .* above the tolerance; expected 0 there"),
    "that takes NaN for apart": (
        {"energy": energy(lambda phi, gap: torch.where(gap.isnan(), 0.0, phi))},
        "phi of a gap that is NaN is 0",
    ),
    "that overflows below zero": (
        {"energy": energy(lambda phi, gap: torch.where(gap <= 0, torch.inf, phi))},
        r"phi is inf at a gap of -.*says `feasible_only = True`",
    ),
}


@pytest.mark.parametrize("friction", [None, ROUGH], ids=["smooth", "rough"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_laws(wrong, place, friction):
    """Refuse laws that are not what they claim, by contact and class, with friction and without, touching or not."""
    methods, message = WRONG[wrong]
    with pytest.raises(InputError, match=rf"^{place}.*: its law, Wrong.*{message}"):
        PLACES[place](changed(**methods), friction)


def of_gamma(function):
    """Return a `slipping` made of y = v / v_slip and the slip velocity."""
    return {"slipping": staticmethod(lambda speed, slip: function(speed / slip, slip))}


WRONG_FRICTION = {
    "gamma itself": (lambda y, v: (torch.tanh(y), (1 - torch.tanh(y) ** 2) / v), r"gamma\(v\)/v at rest is 0 s/m"),
    "0 / 0": (lambda y, v: (torch.tanh(y) / (y * v), (1 - torch.tanh(y) ** 2) / v), r"at 0 m/s gamma\(v\)/v is nan"),
    "slope by y": (lambda y, v: (1 / (1 + y) / v, 1 / (1 + y) ** 2), r"dgamma/dv at rest is 1 s/m; .* 1000 s/m"),
    "another slope": (
        lambda y, v: (1 / (1 + y) / v, 1 / (1 + y) / v),
        r"are not of one gamma: at .* m/s dgamma/dv is .* s/m, differences of v times gamma\(v\)/v say",
    ),
    "one of both": (lambda y, v: 1 / (1 + y) / v, r"expected gamma\(v\)/v and dgamma/dv, a pair, .* got Tensor"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("wrong", WRONG_FRICTION)
def test_wrong_friction(wrong, place):
    """Refuse a `slipping` that is not of one gamma, where there is friction; where there is none it is not asked."""
    function, message = WRONG_FRICTION[wrong]
    law = changed(**of_gamma(function))
    with pytest.raises(InputError, match=rf"^{place}.*: its law, Wrong: slipping\(\).*{message}"):
        PLACES[place](law, ROUGH)
    PLACES[place](law, None)


def exponential(self, gap, stiffness, tolerance):
    """Return a potential that falls by 15 times its length to the tolerance, and is cut off there."""
    phi = stiffness * tolerance**2 * torch.exp(-15 * gap / tolerance)
    return torch.where(gap >= tolerance, 0.0, phi)


def of_exponential(self, gap, stiffness, tolerance):
    """Return its derivatives."""
    phi = exponential(self, gap, stiffness, tolerance)
    return -15 / tolerance * phi, (15 / tolerance) ** 2 * phi


def bent(self, gap, stiffness, tolerance):
    """Return the potential of a spring that gets twice as stiff where it was tried, at .4909 of the tolerance."""
    over, more = tolerance - gap, (0.4909 * tolerance - gap).clamp(min=0)
    return torch.where(gap >= tolerance, 0.0, 0.5 * stiffness * (over**2 + more**2))


def of_bent(self, gap, stiffness, tolerance):
    """Return its derivatives."""
    over, more, apart = tolerance - gap, (0.4909 * tolerance - gap).clamp(min=0), gap >= tolerance
    curvature = torch.where(gap < 0.4909 * tolerance, 2 * stiffness, stiffness)
    return torch.where(apart, 0.0, -stiffness * (over + more)), torch.where(apart, 0.0, curvature)


class Stiff(Barrier):
    """The library's barrier as a user's."""


class Soft(Penalty):
    """The library's penalty as a user's."""


RIGHT = {
    "cubic": lambda: Cubic(100.0, 1e-3),
    "of each robot": lambda: Cubic(torch.tensor([[1e-3], [1.0], [1e6]]), torch.tensor([[1e-9], [1e-3], [1.0]])),
    "of each robot's stiffness": lambda: Cubic(torch.tensor([[1.0], [2.0]]), 1e-3),
    "barrier": lambda: Stiff(100.0, 1e-3),
    "penalty": lambda: Soft(100.0, 1e-3),
    "exponential": lambda: changed(energy=exponential, derivatives=of_exponential),
    "with a kink": lambda: changed(energy=bent, derivatives=of_bent),
    "with sharp friction": lambda: changed(slipping=staticmethod(lambda v, slip: Barrier.slipping(v, 0.01 * slip))),
}


@pytest.mark.filterwarnings("ignore:.*tolerance")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("right", RIGHT)
def test_right_laws(right, place, dtype):
    """Take laws of any size that are right, also with a kink or a smooth onset, and in single precision."""
    PLACES[place](RIGHT[right](), ROUGH, dtype)


@pytest.mark.parametrize("place", PLACES)
def test_laws_of_the_library_are_not_tried(place, monkeypatch):
    """Spend no time on laws of the library."""

    def tried(*_):
        raise AssertionError

    monkeypatch.setattr(law_trials, "_refuse_wrong_law", tried)
    for law in (Penalty, Barrier):
        PLACES[place](law(100.0, 1e-3), ROUGH)
    with pytest.raises(AssertionError):
        PLACES[place](Cubic(100.0, 1e-3), ROUGH)


@pytest.mark.parametrize("place", PLACES)
def test_laws_are_tried_in_both_modes(place):
    """Refuse a law that is right as built, and has dropout when its model is trained."""
    law = changed(energy=lambda self, gap, *constants: self.drop(Cubic.energy(self, gap, *constants)))
    law.drop = nn.Dropout(0.5)
    model = PLACES[place](law.eval(), None)
    before = torch.get_rng_state()
    model.train()
    with pytest.raises(InputError, match="two evaluations at the same state differ"):
        ImplicitEuler(1e-3).step(model, model.initial_state())
    assert torch.equal(torch.get_rng_state(), before)
