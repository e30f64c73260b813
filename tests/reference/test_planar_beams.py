"""Beams in the plane against an independent implementation: a cantilever swings, a buckled beam snaps.

The files are of the x-y plane; the plane is x-z here. Their gravity and turning are those of the start of each step.
"""

import numpy as np
import torch

from tests.reference.loading import load
from torchdismech import Circle, Control, ImplicitEuler, Material, Model, RobotBuilder, Trajectory, forces, rollout

DT, GRAVITY = 1e-2, 10.0  # s, m/s^2
EXACT = {"force_tolerance": 1e-10, "relative_tolerance": 0.0}


def beam(data, youngs: float, held: list[int]) -> Model:
    """Return the file's beam."""
    nodes = np.stack([data["node"][:, 0], np.zeros(len(data["node"])), data["node"][:, 1]], axis=1)
    builder = RobotBuilder(planar=True)
    builder.add_rod(nodes, Circle(1e-2), Material(youngs, 1000.0))
    builder.clamp(nodes=held)
    builder.add_force(forces.Gravity((0.0, 0.0, -GRAVITY)))
    builder.add_force(forces.MassDamping(0.1))
    model = builder.finalize(compile=False)
    np.testing.assert_allclose(model.body.node_mass().flatten(), data["mass"], rtol=1e-9)
    return model


def check(run: Trajectory, data, atol: float) -> None:
    """Hold the path of the middle, that of the tip and the shapes that are stored of its time against a run."""
    plane = run.positions[:, 0][..., [0, 2]].numpy()
    for times, found, expected in (
        ("t_all", plane[:, 19:21].mean(1), "mid_all"),
        ("t_all", plane[:, -1], "tip_all"),
        ("t", plane, "X"),
    ):
        frames = np.round(data[f"conv/{times}"] / DT).astype(int)
        frames = frames[frames < len(plane)]
        assert len(frames) > 10
        np.testing.assert_allclose(found[frames], data[f"conv/{expected}"][: len(frames)], rtol=0, atol=atol)


def test_a_cantilever_swings():
    """Follow a soft cantilever that is let go, down to 0.67 of its length and back, for 5 s."""
    data = load("curve2d_1")
    model = beam(data, 1e8, [0, 1])
    run = rollout(model, model.initial_state(), ImplicitEuler(DT, **EXACT), 500, every=1, throw=True)
    check(run, data, 1e-9)  # measured 2e-10


def test_a_buckled_beam_snaps():
    """Follow a beam that is pushed together, and whose left end then turns until it snaps through, for 16 s.

    Gravity, upwards, chooses the side to which it buckles, and ends after 3 s.
    """
    data = load("curve2d_3")
    model = beam(data, 1e7, [0, 1, 38, 39])
    start = model.initial_state()
    edge = float(model.body.edge_length[..., 0])

    def schedule(time: torch.Tensor, model) -> Control:
        """Push at 0.1 m/s for 1.5 s at either end; from 5 s on turn by 0.1 rad/s."""
        nodes = start.positions.expand(len(time), -1, -1).clone()
        push = (0.1 * time).clamp(max=0.15)[:, None]
        nodes[:, :2, 0] += push
        nodes[:, -2:, 0] -= push
        begun = time - DT
        angle = (0.1 * (begun - 5.0)).clamp(min=0)
        nodes[:, 1, 0] = nodes[:, 0, 0] + edge * torch.cos(angle)
        nodes[:, 1, 2] = -edge * torch.sin(angle)
        up = time.new_zeros(len(time), 3)
        up[:, 2] = torch.where(begun < 3.0 + 0.5 * DT, GRAVITY, 0.0)
        return Control(clamped_q=model.body.q_of(nodes), values={"Gravity.acceleration": up})

    run = rollout(model, start, ImplicitEuler(DT, **EXACT), 1600, schedule, every=1, throw=True)
    check(run, data, 1e-8)
