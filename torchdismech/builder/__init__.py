"""RobotBuilder, which makes a Model of nodes, sections, materials, clamps, forces and contacts."""

from torchdismech.builder.robot import RobotBuilder

__all__ = ["RobotBuilder"]
