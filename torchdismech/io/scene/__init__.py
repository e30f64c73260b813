"""Scene files: read, checked against the robot, and made into a model, its initial state, an integrator and more."""

from torchdismech.io.scene.scene import Scene, Setup, load_scene, read_geometry

__all__ = ["Scene", "Setup", "load_scene", "read_geometry"]
