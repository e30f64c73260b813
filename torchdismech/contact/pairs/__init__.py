"""Contact of a robot's parts with each other: pairs that may touch, closest points, sums of forces and blocks."""
