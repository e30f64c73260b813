"""The text that many scenes of tests begin with, and what tests do with a scene."""

from torchdismech import Trajectory, rollout

__all__ = ["CLAMP", "falling", "rod", "run"]

CLAMP = "[[clamp]]\nnodes = [0, 1]\n"


def rod(edges: int, radius: float = 5e-3, youngs: float = 1e6) -> str:
    """Return the tables [robot] and [rod] of a straight round rod from the origin along x, with edges of 0.1 m."""
    nodes = ", ".join(f"[{0.1 * k:g}, 0, 0]" for k in range(edges + 1))
    return f"""
[robot]
nodes = [{nodes}]
rod_edges = {[[k, k + 1] for k in range(edges)]}
[rod]
section = {{shape = "circle", radius = {radius}}}
youngs = {youngs}
density = 1000.0
"""


def falling(edges: int, duration: float, gravity: str = "[0, 1.0, -9.81]") -> str:
    """Return a scene of such a rod that falls, held at its first edge; keys of [simulation] may follow."""
    begun = rod(edges) + CLAMP
    return f"{begun}\n[environment]\ngravity = {gravity}\n[simulation]\ndt = 0.01\nduration = {duration}\n"


def run(scene, **options) -> Trajectory:
    """Return the trajectory of a scene with every step stored; no robot fails."""
    setup = scene.build(**options)
    trajectory = rollout(setup.model, setup.state, setup.integrator, setup.steps, schedule=setup.schedule)
    assert not trajectory.failed.any()
    return trajectory
