"""Contact of robots with a floor, with obstacles, and of their parts with each other."""

from torchdismech.contact.mesh import Mesh
from torchdismech.contact.obstacle import Obstacle
from torchdismech.contact.path import Path
from torchdismech.contact.response import Barrier, Complementarity, Friction, Penalty, Potential
from torchdismech.contact.self_contact import SelfContact
from torchdismech.contact.shapes import Box, Capsule, Cylinder, HalfSpace, Shape, Sphere

__all__ = [
    "Barrier",
    "Box",
    "Capsule",
    "Cylinder",
    "Complementarity",
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
