"""Elastic terms of a robot: stencils (geometry), energies and inelastic laws (material), and their assembly."""

from torchdismech.elastic.assembly import Assembly
from torchdismech.elastic.corners import Corners
from torchdismech.elastic.energy import Energy, LinearElastic, Sum, batch_last
from torchdismech.elastic.inelastic import Inelastic, Past
from torchdismech.elastic.inelastic_laws import Dahl, Maxwell, Plastic
from torchdismech.elastic.membrane import MembraneStencil, MooneyRivlin, NeoHookean, StVenantKirchhoff
from torchdismech.elastic.rod_stencils import BendTwistStencil, StretchStencil
from torchdismech.elastic.shell import HingeStencil, MidEdgeStencil, Plate
from torchdismech.elastic.stencil import Stencil
from torchdismech.elastic.term import ElasticTerm

__all__ = [
    "Assembly",
    "BendTwistStencil",
    "Corners",
    "Dahl",
    "ElasticTerm",
    "Energy",
    "HingeStencil",
    "Inelastic",
    "LinearElastic",
    "Maxwell",
    "MembraneStencil",
    "MidEdgeStencil",
    "MooneyRivlin",
    "NeoHookean",
    "Past",
    "Plastic",
    "Plate",
    "StVenantKirchhoff",
    "Stencil",
    "StretchStencil",
    "Sum",
    "batch_last",
]
