"""An outside benchmark of rods, the package `cosseratbench`, run by this library.

`pip install cosseratbench`, then

    python -m studies.cosserat_benchmark.cosserat_benchmark cantilever catenary pendulum

`Torchdismech` is a solver as that package asks for one; a package of your own offers it by the entry point
`cosseratbench.solvers`. Quasi-static scenarios are stepped by implicit Euler with the damping by mass that the
package's own solvers take, the others by the midpoint rule. A clamped end is held at its node, in a direction.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from cosseratbench import Capability, Scenario, Trajectory, registry
from cosseratbench.experiment import run
from cosseratbench.scenario import Cylinder, End, EndCondition, Motion, Rod
from torch import Tensor

from torchdismech import Circle, Control, ImplicitEuler, ImplicitMidpoint, Material, Model, RobotBuilder, State, forces
from torchdismech.contact import Cylinder as CylinderShape
from torchdismech.contact import Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.geometry.frames import rotated, signed_angle, transported
from torchdismech.model.clamps import posed

STEP = 5e-2  # s, in quasi-static scenarios, of which the end counts
STEP_OF_MOTION = 2.5e-3  # s, where the motion is the result
SUNK = 0.02  # radii, by which surfaces overlap under all of the load, about
RESIDUAL = 1e-6  # of the largest load: errors are the same at 1e-9
CREEP = 1e-4  # lengths/s, at which smoothed friction is complete
APART = 10.0  # m, between the rods at rest: nodes of two rods at one place would be one node

__all__ = ["Torchdismech"]


class Torchdismech:
    """A solver of `cosseratbench`: discrete rods that stretch, bend and twist, touch and rub."""

    name = "torchdismech"
    capabilities = frozenset(
        {
            Capability.STRETCH,
            Capability.ROD_CONTACT,
            Capability.ROD_FRICTION,
            Capability.CYLINDER_CONTACT,
            Capability.PLANE_CONTACT,
        }
    )

    def __init__(self, time_step_scale: float = 1.0) -> None:
        self.scale = time_step_scale

    def run(self, scenario: Scenario, *, n_elements: int, n_frames: int) -> Trajectory:
        """Return the motion of a scenario's rods in so many elements, by so many frames."""
        robot = _Robot(scenario, n_elements)
        interval = scenario.duration / (n_frames - 1)
        parts = math.ceil(interval / (self.scale * (STEP if scenario.quasi_static else STEP_OF_MOTION)))
        scheme = ImplicitEuler if scenario.quasi_static else ImplicitMidpoint
        force = _force_scale(scenario)
        state, seen, finer = robot.begun(), [], 1
        for frame in range(n_frames):
            if frame:
                count, needed = finer * parts, 1
                integrator = scheme(interval / count, force_tolerance=RESIDUAL * force, max_substeps=16)
                for part in range(1, count + 1):
                    now = (frame - 1) * interval + part * interval / count
                    state, info = integrator.step(robot.model, state, robot.control(now), throw=True)
                    needed = max(needed, int(info.substeps.max()))
                finer = max(1, finer * needed // 2)  # failed steps are costly: shorter ones follow
            seen.append((state.positions[0].clone(), _directors(state)[0]))
        return robot.trajectory(np.linspace(0.0, scenario.duration, n_frames), seen)


class _Robot:
    """The rods of a scenario as one robot, built straight: that is their natural shape."""

    def __init__(self, scenario: Scenario, n_elements: int):
        self.scenario, self.elements = scenario, n_elements
        self.ends: list[_Held] = []
        builder = RobotBuilder(mass="consistent")
        nodes, directors = [], []
        for k, rod in enumerate(scenario.rods):
            start, normals = rod.nodes(n_elements), rod.directors(n_elements)
            along, normal = _rest_frame(rod, n_elements).T[:2]
            line = start[0] + [0, 0, APART * k] + np.linspace(0, rod.length, n_elements + 1)[:, None] * along
            young, shear = rod.material.youngs_modulus, rod.material.shear_modulus
            material = Material(young, rod.material.density, young / (2 * shear) - 1)
            rigidity = {"GJ": shear * 2 * rod.second_moment_of_area}
            index = builder.add_rod(
                line, Circle(rod.radius), material, "straight", rigidity, np.tile(normal, (n_elements, 1))
            )
            self._hold(builder, rod, index)
            for load in rod.loads:
                builder.add_force(forces.PointForce([int(index[0 if load.at is End.START else -1])], load.force))
            nodes.append(start)
            directors.append(normals)
        self._add_surroundings(builder)
        self.model: Model = builder.finalize(compile=False)
        self.nodes, self.directors = (torch.as_tensor(np.concatenate(part)) for part in (nodes, directors))

    def _hold(self, builder: RobotBuilder, rod: Rod, index: np.ndarray) -> None:
        for end in End:
            node, motion = int(index[0 if end is End.START else -1]), rod.motion(end)
            if rod.condition(end) is EndCondition.FREE:
                continue
            clamped = rod.condition(end) is EndCondition.CLAMPED
            along = None if motion is None else motion.slides_along
            builder.clamp(nodes=[node], along=along, twist=clamped, direction="rest" if clamped else None)
            self.ends.append(_Held.of(rod, end, self.elements))

    def _add_surroundings(self, builder: RobotBuilder) -> None:
        """Add gravity, damping, obstacles and contact between rods."""
        scenario, first = self.scenario, self.scenario.rods[0]
        builder.add_force(forces.Gravity(scenario.gravity))
        if scenario.quasi_static:
            builder.add_force(forces.MassDamping(2.0 * scenario.slowest_frequency()))
        stiffness = _force_scale(scenario) / (2 * SUNK * first.radius)

        def law(mu: float) -> tuple[Penalty, Friction | None]:
            return Penalty(stiffness, 0.1 * first.radius), Friction(mu, CREEP * first.length) if mu else None

        for k, obstacle in enumerate(scenario.obstacles):
            mu = max([obstacle.friction, *(rod.friction for rod in scenario.rods)])
            if isinstance(obstacle, Cylinder):
                half = 0.5 * obstacle.length * obstacle.unit_axis
                shape = CylinderShape(obstacle.center - half, obstacle.center + half, obstacle.radius)
            else:
                shape = HalfSpace(obstacle.point, obstacle.normal)
            builder.add_contact(Obstacle(shape, *law(mu), name=f"obstacle{k}"))
        if scenario.self_contact or len(scenario.rods) > 1:
            mu = max(rod.friction for rod in scenario.rods)
            contact = SelfContact(*law(mu), themselves=scenario.self_contact, centre_line="smooth")
            builder.add_contact(contact)

    def begun(self) -> State:
        """Return the state at time 0: the rods at rest, in the shapes of the scenario."""
        body = self.model.body
        rest, positions = self.model.initial_state(), self.nodes[None]
        edges = torch.as_tensor(body.rod_edges)
        along = torch.nn.functional.normalize(positions[:, edges[:, 1]] - positions[:, edges[:, 0]], dim=-1)
        count = len(edges)
        carried = transported(rest.director[:, :count], rest.tangent[:, :count], along)
        angles = signed_angle(carried, self.directors[None].to(carried), along)
        q = body.q_of(positions, torch.cat([angles, rest.q.new_zeros(1, body.n_angles - count)], 1))
        there = self.model.initial_state(q=q)
        held = posed(body, there, self.control(0.0)).clamped_q
        if held is not None:
            q = torch.cat([q[:, : body.first_held], held[:, body.first_held :]], 1)
            angles_held = torch.arange(3 * body.n_nodes + count, body.first_held)
            q[:, angles_held] = held[:, angles_held]
        return self.model.initial_state(q=q)

    def control(self, now: float) -> Control:
        """Return the control with the poses of the held ends at a time [s]."""
        if not self.ends:
            return Control()
        return Control(pose=torch.stack([end.pose(now) for end in self.ends])[None])

    def trajectory(self, times: np.ndarray, seen: list[tuple[Tensor, Tensor]]) -> Trajectory:
        """Return the positions and directors `seen` at the frames as a trajectory of `cosseratbench`, rod by rod."""
        positions, directors = (torch.stack(part).numpy() for part in zip(*seen, strict=True))
        count = len(self.scenario.rods)
        return Trajectory(
            times,
            tuple(np.split(positions, count, axis=1)),
            tuple(np.split(directors[:, : count * self.elements], count, axis=1)),
        )


@dataclass(frozen=True)
class _Held:
    """An end that is held: its pose at time 0, relative to the straight rod at rest, and its motion from there.

    Attributes
    ----------
    position : (3,) [m].
    rotation : (3, 3) from the frame of the rod at rest to that of the end at time 0.
    motion : how the scenario drives the end; None where it stays.
    """

    position: np.ndarray
    rotation: np.ndarray
    motion: Motion | None

    @classmethod
    def of(cls, rod: Rod, end: End, elements: int) -> _Held:
        """Return the held end of a rod with so many elements."""
        k = 0 if end is End.START else -1
        nodes, normals = rod.nodes(elements), rod.directors(elements)
        turned = _frame(np.diff(nodes, axis=0)[k], normals[k])
        return cls(nodes[k], turned @ _rest_frame(rod, elements).T, rod.motion(end))

    def pose(self, now: float) -> Tensor:
        """Return position and quaternion (7,) at a time [s]."""
        position, rotation = self.position, self.rotation
        if self.motion is not None:
            displacement, more = self.motion.pose(now)
            position, rotation = position + displacement, more @ rotation
        return torch.as_tensor(np.concatenate([position, _quaternion(rotation)]))


def _directors(state: State) -> Tensor:
    """Return the first material directors (B, A, 3) of the edges."""
    return rotated(state.director, state.tangent, state.twist)


def _force_scale(scenario: Scenario) -> float:
    """Return the largest of weight, sum of loads and E I / L^2, a force that bends a rod by about its length [N]."""
    weight = sum(r.material.density * r.area * r.length * np.linalg.norm(scenario.gravity) for r in scenario.rods)
    loads = sum(float(np.linalg.norm(load.force)) for rod in scenario.rods for load in rod.loads)
    rod = scenario.rods[0]
    return float(max(weight, loads, rod.material.youngs_modulus * rod.second_moment_of_area / rod.length**2))


def _rest_frame(rod: Rod, n_elements: int) -> np.ndarray:
    """Return the frame of a rod at rest: along the mean of its tangents, so that no edge points the other way."""
    nodes, normals = rod.nodes(n_elements), rod.directors(n_elements)
    tangents = np.diff(nodes, axis=0) / np.linalg.norm(np.diff(nodes, axis=0), axis=1, keepdims=True)
    mean = tangents.mean(0)
    vectors = (torch.as_tensor(v) for v in (normals[0], tangents[0], mean / np.linalg.norm(mean)))
    return _frame(mean, transported(*vectors).numpy())


def _frame(tangent: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Return the matrix of a tangent, a normal across it and the third direction, as columns."""
    t = tangent / np.linalg.norm(tangent)
    return np.stack([t, normal, np.cross(t, normal)], axis=1)


def _quaternion(rotation: np.ndarray) -> np.ndarray:
    """Return the unit quaternion (w, x, y, z) of a rotation matrix: the eigenvector of its largest eigenvalue."""
    r = rotation
    across = np.array([r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]])
    matrix = np.block([[np.array([[np.trace(r)]]), across[None]], [across[:, None], r + r.T - np.trace(r) * np.eye(3)]])
    return np.linalg.eigh(matrix)[1][:, -1]


def main(names: list[str]) -> dict[str, dict[str, float]]:
    """Run experiments and return their metrics, by name."""
    found = {}
    for name in names:
        began = time.perf_counter()
        result = run(registry.load_experiment(name), Torchdismech())
        found[name] = dict(result.metrics)
        told = "  ".join(f"{metric} {value:.3g}" for metric, value in result.metrics.items())
        print(f"{name:12s} {result.outcome}  {told}  ({time.perf_counter() - began:.0f} s)", flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="+", help="of cosseratbench: cantilever, catenary, pendulum, ...")
    main(parser.parse_args().experiments)
