"""Contact of a robot's parts with each other: who may touch whom, closest points, sums of forces and blocks."""
