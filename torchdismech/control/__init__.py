"""Closed loops: controllers with memory, the PI law on natural strains, its references. Guide: docs/control.md."""

from torchdismech.control.feedback import Feedback
from torchdismech.control.pi import PI
from torchdismech.control.protocol import Controller, ControllerWithMemory, Memory
from torchdismech.control.references import Fixed, Reference, Table
from torchdismech.control.strains import Strains

__all__ = ["PI", "Controller", "ControllerWithMemory", "Feedback", "Fixed", "Memory", "Reference", "Strains", "Table"]
