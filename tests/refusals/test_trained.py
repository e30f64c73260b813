"""Tensors that require gradients where their numbers alone are kept, and constants of no robots: refused."""

import numpy as np
import pytest
import torch

from tests.refusals.robots import MATERIAL, rod, shell
from torchdismech import (
    Circle,
    InputError,
    Material,
    Rectangle,
    RobotBuilder,
    arc,
    forces,
    helix,
    meshes,
    straight,
)
from torchdismech.actuation import AtNodes, Tendons
from torchdismech.constant_curvature import PneumaticArm
from torchdismech.contact import Friction, Mesh, Penalty, Sphere
from torchdismech.elastic import LinearElastic, NeoHookean, Plate, StVenantKirchhoff

TRAINED = {
    "Circle.radius": lambda x: Circle(x).constants(),
    "Rectangle.height": lambda x: Rectangle(2e-3, x).constants(),
    "Material.youngs": lambda x: Material(x, 1000.0).constants(),
    "Material.poisson": lambda x: Material(1e6, 1000.0, x).constants(),
    "Material.relaxation_time": lambda x: Material(1e6, 1000.0, 0.3, x).constants(),
    "thickness": shell,
    "Viscous.viscosity": forces.Viscous,
    "Gravity.acceleration": lambda x: forces.Gravity(x * torch.ones(3)),
    "Friction.coefficient": Friction,
    "Penalty.stiffness": lambda x: Penalty(x, 1e-3),
    "Sphere.radius": lambda x: Sphere((0, 0, 0), x),
    "LinearElastic.EA": lambda x: LinearElastic({"EA": x}),
    "NeoHookean.shear": lambda x: NeoHookean(x),
    "StVenantKirchhoff.stiffness": lambda x: StVenantKirchhoff(x, 0.3),
    "Plate.poisson": lambda x: Plate(1.0, x),
    "PneumaticArm.length": lambda x: PneumaticArm(x * torch.ones(3, dtype=x.dtype), [1.0] * 3, 0.04, 265.0, 125.0),
}


@pytest.mark.parametrize("name", TRAINED)
def test_trained_tensors_are_refused_where_their_numbers_alone_are_kept(name):
    """Say what to do instead: gradients by a radius once were those by the mass it makes, of the wrong sign."""
    value = torch.tensor(0.3, dtype=torch.float64)
    TRAINED[name](value)
    with pytest.raises(InputError, match=rf"^{name}: got a tensor that requires gradients; .*trainable\.scaled"):
        TRAINED[name](value.requires_grad_())


def added(places):
    """Return a builder with a rod through (k, 3) places."""
    builder = RobotBuilder()
    builder.add_rod(places, Circle(2e-3), MATERIAL)
    return builder


PLACES = torch.tensor([[0.0, 0.0, 0.1], [0.1, 0.0, 0.0], [0.0, 0.1, 0.0]], dtype=torch.float64)


SOLID = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]), [[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]]


SHAPES = {
    "rod": added,
    "rod: of one number": lambda x: added([[0, 0, 0], [x[0, 2], 0, 0]]),
    "rod: a network": lambda x: RobotBuilder().add_rods(list(x), [[0, 1]], Circle(2e-3), MATERIAL),
    "shell": lambda x: RobotBuilder().add_shell(x, [[0, 1, 2]], 1e-3, MATERIAL),
    "nodes": lambda x: RobotBuilder().add_nodes(x),
    "directors": lambda x: rod(directors=(x[0] / 0.1).expand(4, 3)),
    "clamp.direction": lambda x: added(PLACES).clamp([0], direction=x[0]),
    "clamp.along": lambda x: added(PLACES).clamp([0], along=x[0]),
    "clamp.normal": lambda x: added(PLACES).clamp([0], normal=x),
    "clamp.box": lambda x: added(PLACES).clamp(box=x[0] + torch.tensor([[-1.0], [1.0]])),
    "Mesh": lambda x: Mesh(torch.as_tensor(SOLID[0]) * x[0, 2], SOLID[1]),
    "straight: end": lambda x: straight((0, 0, 0), x[0], 3),
    "arc: start": lambda x: arc((0, 0, 0), x[1], (0, 0, 1), 1.0, 3),
    "helix: height": lambda x: helix((0, 0, 0), (1, 0, 0), (0, 0, 1), 1.0, x[0, 2], 3),
    "length": lambda x: meshes.rectangle(x[0, 2], 0.1, 0.05),
    "radius": lambda x: meshes.disc(x[0, 2], 0.05),
    "AtNodes: offset": lambda x: rod(loads=[Tendons([[AtNodes([0, 4], x[0])]], 1.0)]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_trained_shapes_are_refused_where_robots_are_built_of_numbers(name):
    """Name the place and say what to differentiate by, where NumPy told to detach; take the same tensor detached."""
    SHAPES[name](PLACES)
    place = name.replace(": of one number", "").replace(": a network", "")
    with pytest.raises(InputError, match=rf"^{place}: got a tensor that requires gradients; .*docs/gradients\.md"):
        SHAPES[name](PLACES.clone().requires_grad_())


@pytest.mark.parametrize("name", sorted(TRAINED.keys() - {"PneumaticArm.length"}))  # of one arm alone
def test_constants_of_no_robots_are_refused(name):
    """Name what is an empty selection of rows, which fits no state."""
    with pytest.raises(InputError, match=rf"^{name}: expected numbers of at least one robot, got shape \(0, [13]\)"):
        TRAINED[name](torch.zeros(0, 1, dtype=torch.float64))
