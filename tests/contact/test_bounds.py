"""Bounds of the constants of contact, in a built model as in the constructors: by a control, trained, as actions."""

import warnings

import pytest
import torch

from tests.contact.test_undefined import LAWS, SHAPES, lying
from torchdismech import Control, ImplicitEuler, InputError, trainable
from torchdismech.contact import Barrier, Friction, Obstacle, Path, Penalty, SelfContact
from torchdismech.environments import Constant, Environment, Task, node_positions

OF_SHAPES = [("ball", "radius"), ("capsule", "radius"), ("cylinder", "radius"), ("box", "size")]
OF_LAW = ["stiffness", "tolerance", "slip_velocity", "release"]
NOT_ZERO = [*OF_SHAPES, *(("plane", name) for name in OF_LAW)]
FROM_ZERO = [("plane", "friction")]
ONE_AND_OTHER = [  # values that go together, and what is said of those that do not
    ({"release": 0.5}, "floor.release", "expected more than 1, got 0.5"),
    ({"release": 1.0}, "floor.release", "expected more than 1, got 1"),
    ({"static_friction": 0.1}, "floor.static_friction", "expected no less than coefficient, 0.3, got 0.1"),
    ({"friction": 0.6}, "floor.friction", "expected no more than static, 0.4, got 0.6"),
    ({"friction": 0.6, "static_friction": 0.5}, "floor.friction", "expected no more than static, 0.5, got 0.6"),
    ({"friction": 0.6, "static_friction": 0.7, "release": 1.5}, None, None),
    ({"friction": 0.1, "static_friction": 0.1}, None, None),
]


def floored(shape="plane"):
    """Return rods on an obstacle with every constant there is."""
    return lying(Obstacle(SHAPES[shape](), Penalty(50.0, 1e-4), Friction(0.3, 1e-3, static=0.4), name="floor"))


def number_of(model, name):
    """Return the constant as a control sets it, for one robot."""
    value = getattr(*model.places[name]).detach()
    return value.expand(1, 1) if value.dim() == 0 else value[None]


@pytest.mark.parametrize(("shape", "constant"), [*NOT_ZERO, *FROM_ZERO])
def test_controls(shape, constant):
    """Refuse what the constructors refuse; friction may be zero."""
    model, name = floored(shape), f"floor.{constant}"
    for factor in (-1.0, 0.0):
        control = Control(values={name: factor * number_of(model, name)})
        if factor or (shape, constant) in NOT_ZERO:
            with pytest.raises(
                InputError, match=rf"^Control.values\['{name}'\]: expected (0 or more|more than [01]), got "
            ):
                ImplicitEuler(1e-3).step(model, model.initial_state(), control)
        else:
            ImplicitEuler(1e-3).step(model, model.initial_state(), control)


@pytest.mark.parametrize(("shape", "constant"), [*NOT_ZERO, *FROM_ZERO])
def test_trained(shape, constant):
    """Refuse a step with a constant that was driven below zero, by its name."""
    model, name = floored(shape), f"floor.{constant}"
    shift = trainable.shifted(model, [name], unit=1.0)
    with torch.no_grad():
        shift.shift.fill_(-100.0)
    with pytest.raises(InputError, match=rf"^{name}: expected 0 or more, got -.*an optimiser may have driven it there"):
        ImplicitEuler(1e-3).step(model, model.initial_state())


def stepped_with(model, numbers, robots=1):
    """Take a step with constants of the floor that a control sets."""
    values = {f"floor.{name}": torch.full((robots, 1), number).double() for name, number in numbers.items()}
    return ImplicitEuler(1e-3).step(model, model.initial_state(batch=robots), Control(values=values))


@pytest.mark.parametrize(("numbers", "name", "said"), ONE_AND_OTHER)
def test_friction_falls_as_surfaces_slide(numbers, name, said):
    """Refuse values that the constructor refuses, each beside what else is set with it."""
    if said is None:
        assert bool(stepped_with(floored(), numbers)[1].converged.all())
        return
    with pytest.raises(InputError, match=rf"^Control.values\['{name}'\]: {said}$"):
        stepped_with(floored(), numbers)


def test_friction_of_each_robot():
    """Refuse a coefficient at rest that is too small for one robot of a batch, beside another of each."""
    own = torch.tensor([[0.1], [0.3]], dtype=torch.float64)
    model = lying(Obstacle(SHAPES["plane"](), Penalty(50.0, 1e-4), Friction(own, 1e-3, static=0.4), name="floor"))
    stepped_with(model, {"static_friction": 0.35}, robots=2)
    with pytest.raises(InputError, match="expected no less than coefficient, 0.3, got 0.2"):
        stepped_with(model, {"static_friction": 0.2}, robots=2)


@pytest.mark.parametrize(
    ("constant", "change", "said"),
    [
        ("release", -9.5, "expected more than 1, got 0.5"),
        ("static_friction", -0.2, "expected no less than coefficient, 0.3, got 0.2"),
        ("friction", 0.2, "expected no more than static, 0.4, got 0.5"),
    ],
)
@pytest.mark.parametrize("by", ["a shift", "a factor"])
def test_trained_beyond_other_bounds(by, constant, change, said):
    """Refuse a step with a constant that was driven there, also by a factor, which keeps no more than its sign."""
    model, name = floored(), f"floor.{constant}"
    start = float(trainable.value(model, name))
    if by == "a shift":
        number, value = trainable.shifted(model, [name], unit=1.0).shift, torch.tensor(change)
    else:
        number, value = trainable.scaled(model, [name]).log_factor, torch.tensor(1 + change / start).log()
    ImplicitEuler(1e-3).step(model, model.initial_state())
    with torch.no_grad():
        number.copy_(value)
    with pytest.raises(InputError, match=rf"^{name}: {said}; an optimiser may have driven it there"):
        ImplicitEuler(1e-3).step(model, model.initial_state())


def test_contact_between_parts():
    """Refuse it there, too, by a control and trained."""
    model, name = lying(SelfContact(*LAWS["penalty"]())), "self_contact.friction"
    with pytest.raises(InputError, match=rf"^Control.values\['{name}'\]: expected 0 or more, got -1"):
        ImplicitEuler(1e-3).step(
            model, model.initial_state(), Control(values={name: -torch.ones(1, 1, dtype=torch.float64)})
        )
    trainable.shifted(model, [name], unit=1.0).shift.data.fill_(-1.0)
    with pytest.raises(InputError, match=rf"^{name}: expected 0 or more, got -0.7"):
        ImplicitEuler(1e-3).step(model, model.initial_state())


@pytest.mark.parametrize(
    ("constant", "low", "high", "said"),
    [
        ("friction", -1.0, 0.2, "low: expected 0 or more, got -1"),
        ("friction", 0.1, 0.5, "high: expected no more than static, 0.4, got 0.5"),
        ("static_friction", 0.1, 0.5, "low: expected no less than coefficient, 0.3, got 0.1"),
        ("release", 1.0, 5.0, "low: expected more than 1, got 1"),
    ],
)
def test_actions(constant, low, high, said):
    """Refuse bounds that allow what no step takes, when the environment is made."""
    task = Task(
        actions=[Constant(f"floor.{constant}", low, high)],
        observations=[node_positions([0])],
        reward=lambda model, step: step.after.time,
    )
    with pytest.raises(InputError, match=rf"^Constant\(floor.{constant}\): {said}"):
        Environment(floored(), ImplicitEuler(1e-3), task)


@pytest.mark.parametrize(
    ("contact", "label"),
    [
        (lambda law: Obstacle(SHAPES["plane"](), law, name="floor"), "obstacle 'floor'"),
        (lambda law: SelfContact(law), "SelfContact 'self_contact'"),
    ],
)
@pytest.mark.parametrize("law", [Penalty, Barrier])
def test_tolerances_far_above_the_contact_radius(contact, label, law):
    """Warn of a stiffness and a tolerance in each other's places, but not of a tolerance of ten radii."""
    much = r"is 1e\+04 times the robot's contact radius, 0.002 m"
    expected = rf"^{label}: {law.__name__}.tolerance: 20 m, the gap .* {much}"
    with pytest.warns(UserWarning, match=expected):
        lying(contact(law(1e-4, 20.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lying(contact(law(50.0, 2e-2)))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda law: Obstacle(SHAPES["plane"](), law, name=3), "Obstacle.name: expected a name without '/', got 3"),
        (
            lambda law: Obstacle(SHAPES["plane"](), law, name="."),
            r"Obstacle.name: expected a name without '/', got '\.'",
        ),
        (lambda law: SelfContact(law, name="a\0"), "SelfContact.name: expected a name without '/', got "),
        (lambda law: SelfContact(law, name=3), "SelfContact.name: expected a name without '/', got 3"),
        (lambda law: SelfContact(law, ring="all"), "SelfContact.ring: expected a whole number from 0 up, got 'all'"),
        (lambda law: SelfContact(law, ring=1.5), "SelfContact.ring: expected a whole number from 0 up, got 1.5"),
        (
            lambda law: SelfContact(law, ring=float("nan")),
            "SelfContact.ring: expected a whole number from 0 up, got nan",
        ),
        (lambda law: SelfContact(law, ring=-1), "SelfContact.ring: expected a whole number from 0 up, got -1"),
        (
            lambda law: SelfContact(law, rounding="all"),
            "SelfContact.rounding: expected a number from 0 to 1, got 'all'",
        ),
        (lambda law: SelfContact(law, rounding=1.5), "SelfContact.rounding: expected a number from 0 to 1, got 1.5"),
        (lambda law: SelfContact(law, between=["a", 5]), "SelfContact.between: expected the names of two parts"),
        (lambda law: Path.uniform((1, 0, 0), "long"), "Path.uniform: duration: expected a number, got 'long'"),
    ],
)
def test_other_kinds_of_arguments(made, said):
    """Refuse them when a contact is made, by name."""
    with pytest.raises(InputError, match=f"^{said}"):
        made(Penalty(50.0, 1e-4))
