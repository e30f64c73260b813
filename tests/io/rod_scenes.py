"""The parts of a scene of a rod, and the trajectory of a scene."""

from torchdismech import rollout

ROBOT = """
[robot]
nodes = [[0, 0, 0], [0.1, 0, 0], [0.2, 0, 0], [0.3, 0, 0], [0.4, 0, 0]]
rod_edges = [[0, 1], [1, 2], [2, 3], [3, 4]]
"""
ROD = """
[rod]
section = {shape = "circle", radius = 5e-3}
youngs = 1e6
density = 1000.0
"""
CLAMP = """
[[clamp]]
nodes = [0, 1]
"""
SIMULATION = """
[simulation]
dt = 0.01
duration = 0.05
"""
GRAVITY = """
[environment]
gravity = [0, 0, -9.81]
"""
GOOD = ROBOT + ROD + CLAMP + SIMULATION + GRAVITY


def run(scene, **options):
    """Return the trajectory of a scene with every step stored."""
    setup = scene.build(**options)
    return rollout(setup.model, setup.state, setup.integrator, setup.steps, schedule=setup.schedule)
