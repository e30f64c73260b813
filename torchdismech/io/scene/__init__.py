"""Scene files: read, checked against the robot, and made into what runs."""

from torchdismech.io.scene.scene import Scene, Setup, load_scene, read_geometry

__all__ = ["Scene", "Setup", "load_scene", "read_geometry"]
