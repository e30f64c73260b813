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


def test_options_of_any_name_are_passed_on():
    """Pass options on that a constructor takes by `**`; those that it names are checked, and `*` takes none."""

    class Wrapper(Untyped):
        """A class of a user's that hands options on."""

        def __init__(self, *parts, reach: int = 0, **options):
            super().__init__(*parts, **options)

    assert checked(Wrapper, {"hidden": 4, "reach": 1}, "options") == {"hidden": 4, "reach": 1}
    with pytest.raises(InputError, match="options: reach: expected a whole number"):
        checked(Wrapper, {"hidden": 4, "reach": "far"}, "options")

    def of_parts(*parts, reach: int = 0):
        """Take parts that no option can give."""

    with pytest.raises(InputError, match="of_parts has no 'parts'; it takes: reach"):
        checked(of_parts, {"parts": 1}, "options")


def test_lists_are_given_as_what_a_signature_asks_for():
    """Hand a list of the config on as a list where the type says so, and as a tuple elsewhere."""

    def network(widths: list[int], sizes: tuple[float, ...] = (), both: list[float] | None = None, free=None):
        """Take lists by several types."""

    options = {"widths": [8, 4], "sizes": [0.1], "both": [1.0], "free": [2]}
    assert checked(network, options, "options") == {"widths": [8, 4], "sizes": (0.1,), "both": [1.0], "free": (2,)}
    with pytest.raises(InputError, match="options: widths.1: expected a whole number, got 'x'"):
        checked(network, {"widths": [8, "x"]}, "options")
