"""Warnings are said at the line of users' code that called the library, however deep in it they arise."""

import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, ImplicitEuler, Material, rollout, straight
from torchdismech.errors import FailureWarning, Status, warn


def warned() -> None:
    """Warn, as a function of a user's own may."""
    warn("of a user's own function")


def lines_warned_of(said) -> set[tuple[str, str]]:
    """Return the files of warnings, and their lines as they are written there."""
    with open(__file__) as file:
        lines = file.read().splitlines()
    return {(warning.filename, lines[warning.lineno - 1].strip()) for warning in said}


def test_a_warning_names_the_line_of_users_code():
    """Also where no code of the library is in between."""
    with pytest.warns(UserWarning, match="of a user's own") as said:
        warned()
    assert lines_warned_of(said) == {(__file__, 'warn("of a user\'s own function")')}


def test_a_warning_names_the_line_that_called_the_library():
    """Whether it is said while a robot is made, past what no_grad puts in between, or in a run of many calls."""
    builder = rod_through(straight((0, 0, 0), (1, 0, 0), 5), Circle(1e-2), Material(1e-3, 1000.0))
    with pytest.warns(UserWarning, match="material: ") as made:
        model = builder.finalize(compile=False)
    start = model.initial_state(batch=2)
    start = start.replace(velocity=torch.full_like(start.q, torch.nan))
    with pytest.warns(FailureWarning) as failed:
        rollout(model, start, ImplicitEuler(1e-2), 2)
    assert lines_warned_of(made) == {(__file__, "model = builder.finalize(compile=False)")}
    assert lines_warned_of(failed) == {(__file__, "rollout(model, start, ImplicitEuler(1e-2), 2)")}


def test_explanations_advise_more_substeps_where_some_are_set():
    """A run with `max_substeps` read that it should set it."""
    assert "or more max_substeps where the integrator has them" in Status.MAX_ITERATIONS.explanation
