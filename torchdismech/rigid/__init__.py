"""Slender bodies as chains of rigid elements with spring-dampers between them."""

from torchdismech.rigid.chain import RigidChain
from torchdismech.rigid.integrate import ChainIntegrator, ChainStepInfo, Radau, Sdirk2, chain_integrator
from torchdismech.rigid.modes import natural_frequencies
from torchdismech.rigid.state import ChainState

__all__ = [
    "ChainIntegrator",
    "ChainState",
    "ChainStepInfo",
    "Radau",
    "RigidChain",
    "Sdirk2",
    "chain_integrator",
    "natural_frequencies",
]
