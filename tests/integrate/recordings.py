"""Robots whose steps are recorded, recordings that are switched on and off, and how results are compared."""

import copy
import functools

import torch

from tests.rods import rod_through
from tests.solve.stand_in import replayable
from torchdismech import (
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    contact,
    forces,
    magnetics,
    meshes,
    straight,
    trainable,
    unroll,
)
from torchdismech.actuation import AtNodes, Tendons
from torchdismech.integrate.recorded import recorded_call, recording, rounds, static_problem
from torchdismech.integrate.recorded import step as recorded_step
from torchdismech.model import Model
from torchdismech.native.graphs import recorded
from torchdismech.solve.linear.base import DirectSolver

BATCH = 6

INTEGRATORS = {
    "euler": functools.partial(ImplicitEuler, 1e-2),
    "midpoint": functools.partial(ImplicitMidpoint, 2e-3),
    "newmark": functools.partial(Newmark, 2e-3),
}

# On a CPU springs are found by torch where a recorded step holds a constant that requires gradients, else by compiled
# code, which rounds differently in the last place; a GPU compiles all of a step, which reorders products.
ON_CPU, ON_GPU = 1e-13, 1e-9


def course(model, state, integrator, count):
    """Return states and reports of single steps."""
    found = []
    for _ in range(count):
        state, info = integrator.step(model, state)
        found.append((state, info))
    return found


def per_robot(low: float, high: float) -> torch.Tensor:
    """Return one number of each robot, (B, 1)."""
    return torch.linspace(low, high, BATCH, dtype=torch.float64)[:, None]


def rods(load=None, **options) -> Model:
    """Return damped rods, no two robots of a batch alike, on which constant forces act, and a load."""
    material = Material(per_robot(1e6, 2e6), per_robot(900, 1100), relaxation_time=1e-3)
    down = per_robot(-9.81, -5.0) * torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    loads = [forces.Gravity(down), forces.PointForce([4], (0.0, 1e-3, 0.0), stop=0.05)]
    loads += [] if load is None else [load]
    builder = rod_through(straight((0, 0, 0), (0.2, 0, 0.05), 5), Circle(per_robot(2e-3, 3e-3)), material, loads)
    return builder.finalize(**{"solver": "dense", **options})


def shells(bending: str = "hinge", **options) -> Model:
    """Return small plates that differ in stiffness."""
    builder = RobotBuilder()
    sheet = meshes.rectangle(0.06, 0.04, 0.02)
    builder.add_shell(sheet.nodes, sheet.triangles, 2e-3, Material(per_robot(1e6, 2e6), 1000.0, 0.3), bending)
    builder.clamp(nodes=[0, 1, 2])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    return builder.finalize(**{"solver": "dense", **options})


ROBOTS = {"rods": rods, "hinges": shells, "mid-edges": functools.partial(shells, "midedge")}


def rough(shape, response=None) -> contact.Obstacle:
    """Return an obstacle with friction."""
    return contact.Obstacle(shape, response or contact.Penalty(1e3, 1e-3), contact.Friction(0.4, 1e-3))


LOADS = {
    "viscous": lambda: forces.Viscous(0.1),
    "resistive": lambda: forces.Resistive(0.5, 1.0),
    "explicit": lambda: forces.Viscous(0.01, explicit=True),
    "a moment that follows": lambda: forces.PointMoment((0.0, 1e-4, 0.0), edges=[7], frame="material"),
    "magnet": lambda: magnetics.Magnetic((3e4, 0.0, 0.0), magnetics.Rotating(5e-3, 3.0)),
    "tendon": lambda: Tendons([AtNodes(range(9), (0, 0, 0.005))], tension=2.0),
    "rough floor": lambda: rough(contact.HalfSpace((0, 0, -0.003), (0, 0, 1))),
    "floor that moves": lambda: contact.Obstacle(
        contact.HalfSpace((0, 0, -0.01), (0, 0, 1)), contact.Barrier(1e2, 1e-3), path=contact.Path.uniform((0, 0, 0.1))
    ),
    "floor to roll on": lambda: contact.Obstacle(
        contact.HalfSpace((0, 0, -0.003), (0, 0, 1)),
        contact.Penalty(1e3, 1e-3),
        contact.Friction(0.4, 1e-3, forward_coefficient=0.1, backward_coefficient=0.6),
        rolling=True,
    ),
    "capsule": lambda: rough(contact.Capsule((0.15, -0.1, 0.01), (0.15, 0.1, 0.01), 0.01)),
    "box": lambda: rough(contact.Box((0.15, 0, 0.0), (0.05, 0.05, 0.05))),
}


def rods_on_cpu(robots=1, load=None, **options) -> Model:
    """Return rods of this many robots, factored as most are."""
    stiffness = torch.linspace(1e6, 2e6, robots, dtype=torch.float64)[:, None]
    points, material = straight((0, 0, 0), (0.2, 0, 0.05), 9), Material(stiffness, 1000.0)
    loads = [forces.Gravity((0, 0, -9.81)), *([] if load is None else [load])]
    return rod_through(points, Circle(2e-3), material, loads, "end").finalize(**{"compile": False, **options})


def plates(load=None, bending="hinge", **options) -> Model:
    """Return plates that a load acts on."""
    builder, sheet = RobotBuilder(), meshes.rectangle(0.06, 0.04, 0.02)
    builder.add_shell(sheet.nodes, sheet.triangles, 2e-3, Material(1e6, 1000.0, 0.3), bending)
    builder.clamp(nodes=[0, 1, 2])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    if load is not None:
        builder.add_force(load)
    return builder.finalize(**{"compile": False, **options})


def surface_loads():
    """Return loads on shells."""
    return {
        "drag": lambda: forces.Drag(1000.0, 1.2),
        "pressure": lambda: forces.Pressure(10.0),
        "rough floor": lambda: rough(contact.HalfSpace((0, 0, -0.003), (0, 0, 1))),
    }


class Wind(forces.LocalForce):
    """A learned force of a user's, by positions and velocities, in the step; it says that recordings may hold it."""

    records = True

    def __init__(self, explicit=False):
        super().__init__(reach=0, explicit=explicit)
        generator = torch.Generator().manual_seed(0)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(6, 5, dtype=torch.float64), torch.nn.SiLU(), torch.nn.Linear(5, 3, dtype=torch.float64)
        )
        for parameter in self.network.parameters():
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
        self.scale, self.axes, self.shape, self.calls = 1e-3, (1.0, 1.0, 0.5), torch.tanh, 0

    def nodal_force(self, state, control):
        """Return the force (B, N, 3)."""
        found = self.network(torch.cat([state.positions - self.mean, state.node_velocities], dim=-1))
        along = [a * x for a, x in zip(self.axes, self.shape(found).unbind(-1), strict=True)]
        return self.scale * torch.stack(along, dim=-1)


def recording_of(problem):
    """Return the recording that serves a step, which is started."""
    return recording.recording_of(recording.kind_of(problem), problem)


class Counted:
    """A tape, with the number of its replays."""

    def __init__(self, *given):
        self.tape, self.count = recorded(*given), 0

    def replay(self):
        """Replay the tape."""
        self.count += 1
        return self.tape.replay()


class Graphs:
    """Switches recordings on and off, and keeps what was recorded: by the stand-in for CUDA graphs, or by tapes."""

    def __init__(self, patch, kind):
        self.patch, self.kind = patch, kind
        self.made: list = []

        def kept(*given):
            made = (replayable if kind == "graphs" else Counted)(*given)
            if not isinstance(given[0], functools.partial):  # those are trials of steps that are not taken whole
                self.made.append(made)
            return made

        for module in (recorded_step, rounds, static_problem, recorded_call):
            patch.setattr(module, "recorded", kept)
        patch.setattr(static_problem, "memory_pool", lambda device: None)
        if kind == "graphs":
            self._factor_all_rows()
        self.switch(True)

    def _factor_all_rows(self):
        plain = DirectSolver._factored

        def factored(solver, decompose, values, rows):
            """Factor all rows, as a GPU does."""
            found = plain(solver, decompose, values, None)
            found.ok = found.ok if rows is None else found.ok & rows
            return found

        self.patch.setattr(DirectSolver, "_factored", factored)

    def switch(self, on: bool) -> None:
        """Record steps from now on, or do not."""
        self.patch.setattr(recording, "_compiled_on_a_gpu", lambda model, q: on and self.kind == "graphs")
        self.patch.setattr(recording, "_eager_on_a_cpu", lambda model, q: on and self.kind == "tapes")
        self.patch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)

    @property
    def replays(self) -> int:
        """How often anything was replayed, but for once in each recording of a set-up."""
        return sum(made.count for made in self.made) - len(self.made) // 4


def compare(graphs, run, *models):
    """Return what `run` gives with and without graphs, each on copies of the models."""
    found = []
    for on in (True, False):
        graphs.switch(on)
        found.append(run(*copy.deepcopy(models)))
    return found


def assert_same(found, expected, within=ON_CPU):
    """Compare tensors, one by one."""
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=within, atol=within, equal_nan=True)


def steps(model, integrator, count=4, control=None, state=None, running=None):
    """Return all that the steps give."""
    found = []
    state = model.initial_state(batch=BATCH) if state is None else state
    for _ in range(count):
        state, info = integrator.step(model, state, control, running)
        found += [state.q, state.velocity, state.acceleration, state.director, state.reference_twist, state.time]
        found += [info.status, info.iterations, info.residual, info.tolerance, info.force_scale, info.substeps]
    return found


def trained(model, robot, chunk):
    """Return gradients and states over steps of an optimiser."""
    names = ["bend_twist.EI1", "bend_twist.EI2"] if robot == "rods" else ["hinge.hinge"]
    factor, found = trainable.scaled(model, names), []
    optimizer = torch.optim.SGD(factor.parameters(), lr=0.1)
    for _ in range(3):
        state = model.initial_state(batch=BATCH).detach()
        velocity = torch.full_like(state.velocity, 1e-3).requires_grad_()
        run = unroll(model, state.replace(velocity=velocity), ImplicitEuler(1e-2, chunk=chunk), 3)
        optimizer.zero_grad()
        (run.q[-1] ** 2).sum().backward()
        found += [velocity.grad, factor.log_factor.grad.clone(), run.q.detach()]
        optimizer.step()
    return found


def thrown(model):
    """Return a state whose last robots are too fast to be solved in one go, and one that is not finite."""
    state = model.initial_state()
    speed = torch.zeros_like(state.velocity)
    speed[3:, 8] = torch.tensor([2.0, 20.0, 200.0], dtype=torch.float64)
    speed[0] = torch.nan
    return state.replace(velocity=speed)
