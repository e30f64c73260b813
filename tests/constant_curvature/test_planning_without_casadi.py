"""What plans say where CasADi is not installed; apart from test_planning.py, which is skipped there."""

import builtins

import pytest

from torchdismech.constant_curvature import PneumaticArm
from torchdismech.constant_curvature.planning import Ball, plan_rotation, rotation_about, touching_start
from torchdismech.errors import InputError


def test_planning_without_casadi_says_what_to_install(monkeypatch):
    """Hide CasADi, if it is there: plans are refused with the line that installs it."""
    real = builtins.__import__

    def hidden(name, *args, **settings):
        if name == "casadi":
            raise ImportError("hidden")
        return real(name, *args, **settings)

    monkeypatch.setattr(builtins, "__import__", hidden)
    arm, ball = PneumaticArm([0.2, 0.2], [0.8, 0.4], 0.04, 265.0, 125.0, disks=0), Ball(center=(0.0, 0.03, 0.55))
    with pytest.raises(InputError, match=r"pip install 'torchdismech\[plan\]'"):
        plan_rotation(arm, ball, rotation_about("x", 30.0))
    with pytest.raises(InputError, match=r"pip install 'torchdismech\[plan\]'"):
        touching_start(arm, ball)


def test_an_axis_that_is_none_is_named():
    """Say what was given in place of an axis."""
    with pytest.raises(InputError, match="axis: expected x, y, z or a vector .*, got 'w'"):
        rotation_about("w", 90.0)
