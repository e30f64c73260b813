"""Cost of chains of rigid elements: forward dynamics, and the flexible pendulum, beside Pinocchio.

Pinocchio (``pip install pin``) has no springs and no batches: a user adds the torques of springs and dampers to those
of the motor, calls it for one robot after the other, and takes steps by scipy's integrators. Both are measured here, in
the same run.

The pendulum is that of `studies/flexible_pendulum`, 3 s of it (of peers 1 s): a motor lets it sag and lifts it from
2.5 s on, its torque held over 10 ms. In a batch Young's modulus varies by 10 % from robot to robot. "From fine" is the
largest distance of a tip, over all robots and steps, from a solution with internal steps of a quarter of the step
(which is right to 2e-6 m): 1 mm is allowed.

Times are process CPU time on one thread. Compiling is given apart, as wall time of the first call.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.jobs import Job
from benchmarks.machine import median_seconds, now, peak_bytes, version_or_none
from benchmarks.rods import youngs_of_batch
from benchmarks.table import Row
from studies.flexible_pendulum import flexible_pendulum as pendulum
from torchdismech import Control, Status, unroll
from torchdismech.rigid import ChainIntegrator, Radau, RigidChain

EVALUATED = 1024  # robots in a call of forward dynamics
CHAINS = (("plane", 3), ("plane", 5), ("plane", 10), ("plane", 20), ("space", 3), ("space", 5))
PENDULUMS = (3, 5, 10)  # segments
BATCH = 256
DURATION, OF_PEERS = 3.0, 1.0  # s: peers, which are slow, take the first second only
METHODS = ("RK45", "LSODA", "Radau")  # of scipy, at their default tolerances
ALLOWED = 1e-3  # m, of a tip
REPEATS = 20
DIFFERENTIATED = 25  # steps


def jobs(quick: bool, cuda: bool) -> list[Job]:
    """Return the jobs: forward dynamics and pendulums, of Pinocchio and ours, and our backward passes."""
    peer = f"pinocchio {version_or_none('pin')}"
    found = []
    for kind, segments in CHAINS[1:2] if quick else CHAINS:
        settings: dict[str, Any] = {"kind": kind, "segments": segments}
        case = dynamics_case(kind, segments)
        found.append(Job("rigid", case, EVALUATED, peer, {"what": "peer dynamics", **settings}, peer=True))
        found.append(Job("rigid", case, EVALUATED, "batch", {"what": "dynamics", **settings}))
    for segments in PENDULUMS[:1] if quick else PENDULUMS:
        settings = {"segments": segments, "duration": 0.1 if quick else OF_PEERS}
        case = pendulum_case(segments)
        found.append(Job("rigid", case, 1, f"{peer}, scipy", {"what": "peer pendulum", **settings}, peer=True))
        settings["duration"] = 0.1 if quick else DURATION
        for batch in (16,) if quick else (1, BATCH):
            found.append(Job("rigid", case, batch, "Radau", {"what": "pendulum", "batch": batch, **settings}))
    case, batch = f"{pendulum_case(5)}, forward and backward", 16 if quick else BATCH
    found.append(Job("rigid", case, batch, "Radau", {"what": "backward", "segments": 5, "batch": batch}))
    return found


def rows(what: str, **settings) -> list[Row]:
    """Return the rows of one job."""
    torch.set_num_threads(1)
    return MEASURES[what](**settings)


def dynamics_case(kind: str, segments: int) -> str:
    """Return the table's name of forward dynamics of a chain."""
    return f"forward dynamics, {kind}, n = {segments}"


def pendulum_case(segments: int) -> str:
    """Return the table's name of a pendulum."""
    return f"pendulum, n = {segments}"


def chain(kind: str, segments: int) -> RigidChain:
    """Return the pendulum's cable, in the plane or in space."""
    space = kind == "space"
    shear = 0.4 * pendulum.YOUNGS if space else None
    return RigidChain.cylinder(
        segments,
        pendulum.LENGTH,
        pendulum.DIAMETER,
        pendulum.DENSITY,
        pendulum.YOUNGS,
        pendulum.VISCOSITY,
        shear,
        space=space,
        base=pendulum.BASE,
    )


def random_motion(model: RigidChain, batch: int) -> Tensor:
    """Return random q, velocity and torque (3, B, J), the same each time."""
    generator = torch.Generator().manual_seed(0)
    return 0.3 * torch.randn(3, batch, model.n_dofs, generator=generator, dtype=torch.float64)


# ---- forward dynamics --------------------------------------------------------------------------------------------


@torch.no_grad()
def dynamics_rows(kind: str, segments: int) -> list[Row]:
    """Return the row of a batch's accelerations."""
    model = chain(kind, segments)
    q, velocity, torque = random_motion(model, EVALUATED)
    state, control = model.initial_state(q=q, velocity=velocity), Control(force=torque)
    began = time.perf_counter()
    model.forward_dynamics(state, control)
    first = time.perf_counter() - began
    seconds = median_seconds(lambda: model.forward_dynamics(state, control), times=REPEATS) / EVALUATED
    peak = peak_bytes() / 1e6
    return [Row(dynamics_case(kind, segments), EVALUATED, "batch", seconds=seconds, compile_s=first, peak_mb=peak)]


def peer_dynamics_rows(kind: str, segments: int) -> list[Row]:
    """Return the row of Pinocchio's accelerations with the torques of springs, one robot after the other."""
    import pinocchio as pin

    ours = chain(kind, segments)
    q, velocity, torque = (x.numpy() for x in random_motion(ours, EVALUATED))
    right = ours.forward_dynamics(
        ours.initial_state(q=torch.from_numpy(q), velocity=torch.from_numpy(velocity)),
        Control(force=torch.from_numpy(torque)),
    ).numpy()
    model = peer_model(ours)
    data = model.createData()
    stiffness, damping = springs(ours)

    def all_robots() -> list[np.ndarray]:
        loads = torque - stiffness * q - damping * velocity
        return [pin.aba(model, data, q[k], velocity[k], loads[k]).copy() for k in range(EVALUATED)]

    difference = np.abs(np.stack(all_robots()) - right).max() / np.abs(right).max()
    seconds = median_seconds(all_robots, times=REPEATS) / EVALUATED
    note = f"accelerations differ from ours by {difference:.0e} of the largest"
    case, who = dynamics_case(kind, segments), f"pinocchio {pin.__version__}"
    return [Row(case, EVALUATED, who, seconds=seconds, peer=True, peak_mb=peak_bytes() / 1e6, note=note)]


def springs(model: RigidChain) -> tuple[np.ndarray, np.ndarray]:
    """Return stiffness and damping of the joints (J,)."""
    dynamics = model.dynamics()
    return dynamics.stiffness[:, 0, 0].numpy(), dynamics.damping[:, 0, 0].numpy()


def peer_model(model: RigidChain):
    """Return Pinocchio's model of a chain whose robots are all alike."""
    import pinocchio as pin

    joints = {"x": pin.JointModelRX, "y": pin.JointModelRY, "z": pin.JointModelRZ}
    about = np.array([[1.0, 0, 0], [0, 0, -1.0], [0, 1.0, 0]])  # the first joint turns x towards z
    found, parent, place = pin.Model(), 0, pin.SE3(about, model.base.numpy())
    for body in range(model.n_bodies):
        for axis in "z" if body == 0 or not model.space else "zyx":
            parent = found.addJoint(parent, joints[axis](), place, f"{body}{axis}")
            place = pin.SE3.Identity()
        inertia = [float(getattr(model, f"inertia_{axis}")[body]) if axis in model.axes else 0.0 for axis in "xyz"]
        centre = np.array([float(model.centre[body]), 0.0, 0.0])
        found.appendBodyToJoint(parent, pin.Inertia(float(model.mass[body]), centre, np.diag(inertia)), place)
        place = pin.SE3(np.eye(3), np.array([float(model.length[body]), 0.0, 0.0]))
    return found


# ---- pendulum ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def pendulum_rows(segments: int, batch: int, duration: float) -> list[Row]:
    """Return the row of a batch of pendulums, in steps of 10 ms by Radau's method."""
    model = pendulums(segments, batch)
    start, steps = model.initial_state(batch), round(duration / pendulum.STEP)
    integrator = Radau(pendulum.STEP)
    began = time.perf_counter()
    integrator.step(model, start, pendulum.motor()(start, Control(), model))
    first = time.perf_counter() - began
    swung(model, integrator, steps)
    began = now()
    run = swung(model, integrator, steps)
    seconds = (now() - began) / (steps * batch)
    fine = swung(pendulums(segments, batch), Radau(pendulum.STEP, h=pendulum.STEP / 4), steps)
    return [
        Row(
            pendulum_case(segments),
            batch,
            "Radau",
            pendulum.STEP,
            seconds,
            drift=float((tips(model, run.q) - tips(model, fine.q)).norm(dim=-1).max()),
            converged=int((run.status == Status.CONVERGED).sum()),
            compile_s=first,
            peak_mb=peak_bytes() / 1e6,
            note=f"{float(run.iterations.double().mean()):.2f} ({int(run.iterations.max())}) iterations",
        )
    ]


def pendulums(segments: int, batch: int) -> RigidChain:
    """Return pendulums that differ in their stiffness; the first one has the nominal one."""
    return pendulum.cable(segments, youngs_of_batch(pendulum.YOUNGS, batch))


def swung(model: RigidChain, integrator: ChainIntegrator, steps: int):
    """Return the motion of pendulums from rest."""
    return unroll(model, model.initial_state(), integrator, steps, controller=pendulum.motor())


def tips(model: RigidChain, q: Tensor) -> Tensor:
    """Return the tips (T, B, 3) [m] at angles (T, B, J)."""
    return torch.stack([model.points(frame)[:, -1] for frame in q])


def peer_pendulum_rows(segments: int, duration: float) -> list[Row]:
    """Return the rows of one pendulum by Pinocchio and scipy's integrators, the fastest first."""
    import pinocchio as pin

    model, steps = pendulums(segments, 1), round(duration / pendulum.STEP)
    with torch.no_grad():
        fine = tips(model, swung(model, Radau(pendulum.STEP, h=pendulum.STEP / 4), steps).q)
    found = []
    for method in METHODS:
        q, seconds = peer_swung(model, method, steps)
        found.append(
            Row(
                pendulum_case(segments),
                1,
                f"pinocchio {pin.__version__}, scipy {method}",
                pendulum.STEP,
                seconds / steps,
                peer=True,
                drift=float((tips(model, torch.from_numpy(q)[:, None]) - fine).norm(dim=-1).max()),
                peak_mb=peak_bytes() / 1e6,
            )
        )
    return sorted(found, key=lambda row: row.seconds)


def peer_swung(ours: RigidChain, method: str, steps: int) -> tuple[np.ndarray, float]:
    """Return the angles (steps + 1, J) of the pendulum by Pinocchio in scipy's integrator, and the CPU seconds."""
    import pinocchio as pin
    from scipy.integrate import solve_ivp

    model = peer_model(pendulum.cable(ours.n_bodies - 1))
    data = model.createData()
    stiffness, damping = springs(pendulum.cable(ours.n_bodies - 1))
    count = model.nv
    torque = np.zeros(count)

    def rates(t: float, y: np.ndarray) -> np.ndarray:
        q, velocity = y[:count], y[count:]
        load = torque - stiffness * q - damping * velocity
        return np.concatenate([velocity, pin.aba(model, data, q, velocity, load)])

    y = np.zeros(2 * count)
    q = [y[:count]]
    began = now()
    for k in range(steps):
        goal = 0.0 if k * pendulum.STEP < pendulum.CHANGE - 0.5 * pendulum.STEP else pendulum.GOAL
        torque[0] = pendulum.GAIN * (goal - y[0]) - pendulum.DAMPING * y[count]
        y = solve_ivp(rates, (0, pendulum.STEP), y, method=method).y[:, -1]
        q.append(y[:count])
    return np.stack(q), now() - began


def passes(segments: int, batch: int) -> tuple[float, float, float]:
    """Return the CPU times [s] of steps alone and with gradients by E, viscosity and gain, and their ratio."""
    leaves = [torch.full((batch, 1), x, dtype=torch.float64) for x in (pendulum.YOUNGS, pendulum.VISCOSITY)]
    gain = torch.full((batch,), pendulum.GAIN, dtype=torch.float64)
    integrator = Radau(pendulum.STEP)

    def run(gradients: bool) -> float:
        given = [x.clone().requires_grad_(gradients) for x in (*leaves, gain)]
        model = pendulum.cable(segments, *given[:2])
        start = model.initial_state()
        began = now()
        with torch.set_grad_enabled(gradients):
            controller = pendulum.motor(given[2])
            end = unroll(model, start, integrator, DIFFERENTIATED, controller=controller, throw=True).state
            if gradients:
                end.positions[:, -1, 2].sum().backward()
        return now() - began

    run(True)
    plain, both = (statistics.median(run(gradients) for _ in range(3)) for gradients in (False, True))
    return plain, both, both / plain


def backward_rows(segments: int, batch: int) -> list[Row]:
    """Return the row of steps and their gradients; the note compares with steps alone."""
    _, both, ratio = passes(segments, batch)
    case = f"{pendulum_case(segments)}, forward and backward"
    seconds = both / (batch * DIFFERENTIATED)
    note = f"{ratio:.2f} x forward"
    return [Row(case, batch, "Radau", pendulum.STEP, seconds, peak_mb=peak_bytes() / 1e6, note=note)]


MEASURES: dict[str, Callable[..., list[Row]]] = {
    "dynamics": dynamics_rows,
    "peer dynamics": peer_dynamics_rows,
    "pendulum": pendulum_rows,
    "peer pendulum": peer_pendulum_rows,
    "backward": backward_rows,
}
