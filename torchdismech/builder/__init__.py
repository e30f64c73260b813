"""RobotBuilder: from nodes, sections, materials and clamps to a Model."""

from torchdismech.builder.robot import RobotBuilder

__all__ = ["RobotBuilder"]
