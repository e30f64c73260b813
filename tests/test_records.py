"""Copies of frozen dataclasses."""

from dataclasses import dataclass, field
from functools import cached_property

import pytest

from torchdismech.records import field_names, replaced


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
