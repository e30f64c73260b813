"""Scenes with contact that tests share."""

import numpy as np

from torchdismech import (
    Material,
)

RADIUS = 5e-3


LENGTH = 0.2


NODES = 5


WEIGHT = 1000.0 * np.pi * RADIUS**2 * LENGTH * 9.81  # [N] of the rod below


RUBBER = Material(1e6, 1000.0)


def rod(height: float, start: float = 0.0) -> str:
    """Return the tables of a rod along x."""
    nodes = [[start + LENGTH * k / (NODES - 1), 0.0, height] for k in range(NODES)]
    edges = [[k, k + 1] for k in range(NODES - 1)]
    section = f'section = {{shape = "circle", radius = {RADIUS}}}'
    return f"[robot]\nnodes = {nodes}\nrod_edges = {edges}\n[rod]\n{section}\nyoungs = 1e6\ndensity = 1000.0\n"


def time(duration: float, dt: float = 2e-3) -> str:
    """Return the table [simulation]."""
    return f"[simulation]\ndt = {dt}\nduration = {duration}\n"


GRAVITY = "[environment]\ngravity = [{}, 0, -9.81]\n"


FLOOR = "[floor]\nheight = 0.0\nstiffness = 100.0\n"


CONSTRAINT = '[floor]\nheight = 0.0\nresponse = "complementarity"\n'


BALL = '[[obstacle]]\nshape = "sphere"\ncenter = [0.1, 0, -0.1]\nradius = 0.1\nstiffness = 100.0\n'


def randomized(name: str, values: list[float]) -> str:
    """Return a batch in which a number differs from robot to robot."""
    return f'[batch]\nsize = {len(values)}\n[batch.randomize]\n"{name}" = {{values = {values}}}\n'
