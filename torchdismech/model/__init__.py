"""`Model`: a robot with all forces that act on it; and the checks of what users give and write."""

from torchdismech.model.model import Model

__all__ = ["Model"]
