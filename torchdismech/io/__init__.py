"""Files read and written: DiSMech text, meshes, tables, scene files, and runs of scenes into trajectory files."""

from torchdismech.io.dismech import Geometry, read_dismech

__all__ = ["Geometry", "read_dismech"]
