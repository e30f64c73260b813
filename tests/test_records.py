"""Copies of frozen dataclasses."""

from dataclasses import dataclass, field
from functools import cached_property

import pytest
import torch

import tests.rods
from torchdismech import BDF2, Circle, Control, ImplicitEuler, Material, meshes, rollout, straight, unroll
from torchdismech.records import field_names, replaced
from torchdismech.rigid import Radau, RigidChain


@dataclass(frozen=True)
class Point:
    """A place, and how far it is."""

    x: float
    y: float = field(default=0.0, kw_only=True)

    @cached_property
    def distance(self) -> float:
        """The distance from the origin."""
        return abs(self.x) + abs(self.y)


@dataclass(frozen=True)
class Named(Point):
    """A place that has a name in any case."""

    name: str | None = None

    def __post_init__(self) -> None:
        if self.name is None:
            object.__setattr__(self, "name", "origin")


def test_some_fields_change():
    """Change the fields that are given, in a copy of the same class."""
    point = Point(1.0, y=2.0)
    copy = replaced(point, y=5.0)
    assert copy == Point(1.0, y=5.0) and type(copy) is Point and point == Point(1.0, y=2.0)
    assert field_names(point) == ("x", "y") and field_names(Named(1.0)) == ("x", "y", "name")


def test_what_was_found_of_a_record_is_not_copied():
    """Find cached properties of a copy anew."""
    point = Point(1.0, y=2.0)
    assert point.distance == 3.0
    assert replaced(point, y=5.0).distance == 6.0


def test_classes_that_do_more_do_so():
    """Let a class finish a copy as it does what is made by its name."""
    assert replaced(Named(1.0, name="a"), name=None).name == "origin"


def test_unknown_fields_are_refused():
    """Refuse a name that is no field, as `dataclasses.replace` does, also that of a cached property."""
    point = Point(1.0)
    assert point.distance == 1.0
    for name in ("z", "distance"):
        with pytest.raises(TypeError, match=name):
            replaced(point, **{name: 1.0})


def test_what_holds_tensors_is_equal_to_itself_alone():
    """Compare what steps and runs take and return, and look for it in lists and sets: torch would refuse `==`."""
    arm = tests.rods.rod_through(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(4e-3), Material(1e6, 1000.0)).finalize()
    chain = RigidChain.cylinder(2, length=0.3, diameter=6e-3, density=1100.0, youngs=2e7, viscosity=1e5)
    pairs = [[Control(natural_twist=torch.zeros(2, 3), values={"mass": torch.ones(2, 5)}) for _ in range(2)]]
    for model, integrator in ((arm, ImplicitEuler(1e-2)), (arm, BDF2(1e-2)), (chain, Radau(1e-2))):
        state = model.initial_state(batch=2)
        steps = [integrator.step(model, state) for _ in range(2)]
        pairs += [list(after) for after in zip(*steps, strict=True)]
        pairs += [[run(model, state, integrator, 2) for _ in range(2)] for run in (rollout, unroll)]
    pairs += [[ImplicitEuler(1e-2).steps(arm, arm.initial_state(batch=2), 2)[1] for _ in range(2)]]
    pairs += [[meshes.rectangle(1.0, 1.0, 0.5) for _ in range(2)]]
    for one, other in pairs:
        assert one == one and one != other and one in [other, one] and other not in [one] and len({one, other}) == 2
