"""Options of a config against the signature of what takes them."""

import pytest

from torchdismech import InputError
from training.options import checked


class Untyped:
    """A class of a user's that says no types."""

    def __init__(self, hidden=8, depth: int = 2):
        self.hidden, self.depth = hidden, depth


def test_parameters_without_types_take_any_option():
    """Take an option whose parameter says no type; those with one are held to it, and to their names."""
    assert checked(Untyped, {"hidden": 4, "depth": 3}, "terms.drag.options") == {"hidden": 4, "depth": 3}
    with pytest.raises(InputError, match="terms.drag.options: depth: expected a whole number"):
        checked(Untyped, {"depth": "two"}, "terms.drag.options")
    with pytest.raises(InputError, match="Untyped has no 'width'; it takes: hidden, depth"):
        checked(Untyped, {"width": 4}, "terms.drag.options")
