"""Contact of robots with a floor, with obstacles, and of their parts with each other."""

from torchdismech.contact.obstacles.mesh import Mesh
from torchdismech.contact.obstacles.obstacle import Obstacle
from torchdismech.contact.obstacles.path import Path
from torchdismech.contact.obstacles.shape import Shape
from torchdismech.contact.obstacles.shapes import Box, Capsule, Cylinder, HalfSpace, Sphere
from torchdismech.contact.pairs.self_contact import SelfContact
from torchdismech.contact.response import Barrier, Complementarity, Friction, Penalty, Potential

__all__ = [
    "Barrier",
    "Box",
    "Capsule",
    "Complementarity",
    "Cylinder",
    "Friction",
    "HalfSpace",
    "Mesh",
    "Obstacle",
    "Path",
    "Penalty",
    "Potential",
    "SelfContact",
    "Shape",
    "Sphere",
]
