"""Whose code a module is stays so where its tensors are parametrized, and what users wrote is tried all the same."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tests.hooked import rod
from torchdismech import ImplicitEuler, InputError, forces
from torchdismech.contact import Friction, HalfSpace, Obstacle, Penalty
from torchdismech.forces.dependence import Block
from torchdismech.fused import is_own
from torchdismech.model.user_code import holds_users_code, runs_users_code
from torchdismech.origin import class_name, class_of, function_is_of_library, is_of_library, is_of_torch, is_of_user

LIBRARY = Path(__file__).resolve().parents[1] / "torchdismech"


class Spring(forces.Force):
    """A spring to the origin whose written derivative is wrong, by sign and size."""

    def __init__(self):
        super().__init__()
        self.stiffness = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, state, control):
        """Return the force (B, n) [N]."""
        return self.body.on_nodes(-self.stiffness * state.positions)

    def blocks(self):
        """Return one block, of each node with itself."""
        own = 3 * np.arange(self.body.n_nodes)[:, None] + np.arange(3)
        return [Block(own, own)]

    def derivatives(self, state, control):
        """Return the wrong derivative (B, N, 3, 3)."""
        shape = (*state.positions.shape, 3)
        return [(5 * self.stiffness * torch.eye(3, dtype=torch.float64).expand(shape), None)]


class Hiding(forces.Force):
    """A spring to the origin that keeps one of its factors in a list."""

    def __init__(self, factor):
        super().__init__()
        self.stiffness = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.box = [factor]

    def forward(self, state, control):
        """Return the force (B, n) [N]."""
        return -self.stiffness * self.box[0] * state.q


class Tilted(HalfSpace):
    """A half-space whose normal is said to be longer than it is."""

    def distance_and_derivatives(self, points):
        """Return the distances, normals of length two, and curvatures."""
        distance, normal, curvature = super().distance_and_derivatives(points)
        return distance, 2 * normal, curvature


def parametrized(module, name):
    """Return a module, one of its tensors made positive by a module of torch."""
    parametrize.register_parametrization(module, name, nn.Softplus())
    return module


def test_class_is_that_of_the_author():
    """Tell user, library and torch apart, before and after a tensor of each is parametrized."""
    for module, tensor, whose in (
        (Spring(), "stiffness", is_of_user),
        (forces.MassDamping(1.0), "rate", is_of_library),
        (nn.Linear(2, 2), "weight", is_of_torch),
    ):
        kind = type(module)
        for _ in range(2):
            assert [f for f in (is_of_user, is_of_library, is_of_torch) if f(module)] == [whose]
            assert class_of(module) is kind and class_name(module) == kind.__name__
            assert holds_users_code(module) == runs_users_code(module) == (whose is is_of_user)
            parametrized(module, tensor)
        assert not is_own(module)  # what makes its tensors is looked for elsewhere


def test_weight_norm_of_torch_leaves_a_users_network_the_users():
    """Find the user's code in a network whose weights torch normalises."""

    class Network(nn.Linear):
        pass

    assert is_of_user(parametrizations.weight_norm(Network(3, 3)))


def test_functions_of_the_library_are_known():
    """Tell a function of the library, also the method of a class, from others."""
    assert function_is_of_library(class_of) and function_is_of_library(ImplicitEuler.step)
    assert not function_is_of_library(torch.sin) and not function_is_of_library(parametrized)


@pytest.mark.parametrize("made", [False, True], ids=["plain", "parametrized"])
def test_wrong_derivatives_are_refused(made):
    """Refuse a force with a wrong written derivative, also if a tensor of it is parametrized, by its author's name."""
    force = parametrized(Spring(), "stiffness") if made else Spring()
    with pytest.raises(InputError, match=r"^Spring: its derivatives\(\) by position are not those of forward"):
        rod(force)


@pytest.mark.parametrize("made", [False, True], ids=["plain", "parametrized"])
def test_hidden_tensors_are_refused(made):
    """Refuse a tensor in a list that requires gradients, as steps pass none to it, also in a parametrized force."""
    force = Hiding(torch.tensor(0.3, dtype=torch.float64, requires_grad=True))
    model = rod(parametrized(force, "stiffness") if made else force)
    with pytest.raises(InputError, match=r"^Hiding\.box: requires gradients, but is not registered"):
        ImplicitEuler(1e-3).step(model, model.initial_state())


@pytest.mark.parametrize("made", [False, True], ids=["plain", "parametrized"])
def test_wrong_shapes_are_refused(made):
    """Refuse a user's shape with a wrong normal, also if a tensor of it is parametrized."""
    shape = Tilted((0.0, 0.0, -1.0), (0.0, 0.0, 1.0))
    if made:
        parametrize.register_parametrization(shape, "point", nn.Identity())
    with pytest.raises(InputError, match="Tilted: its normal is not the gradient of its distance"):
        rod(Obstacle(shape, Penalty(1e3, 1e-3), Friction(0.5, 1e-3)))


def test_it_is_asked_in_one_place():
    """Find no other file of the library that takes the name of a module apart, or unwraps its class."""
    asks = re.compile(r"__module__\.partition|type_before_parametrizations")
    found = {
        path.relative_to(LIBRARY).as_posix() for path in LIBRARY.rglob("*.py") if asks.search(path.read_text("utf-8"))
    }
    assert found == {"origin.py", "errors.py"}  # errors stands before it
