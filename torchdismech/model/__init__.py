"""Models of robots: what they are made of, what they refuse, and all that acts on them."""

from torchdismech.model.model import Model

__all__ = ["Model"]
