"""Reading robots: DiSMech text and scene files."""

from torchdismech.io.dismech import Geometry, read_dismech

__all__ = ["Geometry", "read_dismech"]
