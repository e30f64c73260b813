"""Obstacles: shapes with signed distances, how they move, and the points of robots that touch them."""
