"""The benchmark's peer is the same arm, and Lemke's method agrees with the solvers of the library."""

import math

import numpy as np
import torch

from benchmarks.peer_arm import PeerArm, lemke
from studies.pneumatic_arm.conditioned import Conditioning, solve_conditioned
from studies.pneumatic_arm.scenarios import inclined_box
from torchdismech import Control
from torchdismech.constant_curvature import ArmIntegrator
from torchdismech.solve.complementarity import solve_contact, solve_lcp


def test_peer_steps_as_the_library():
    """Take both through 60 steps that end in contact with an incline close by."""
    angle = math.radians(45)
    normal, height = np.array([-math.sin(angle), 0.0, math.cos(angle)]), -0.56
    peer = PeerArm(2, normal, np.array([0.0, 0.0, height]))
    scene = inclined_box(half=True, disks=2)
    scene.arm.obstacles[0].shape.point[2] = height
    force = np.zeros(9)
    force[[3, 6]] = 40.0
    q, v, touched = np.full(9, 0.02), np.zeros(9), 0
    state, integrator = scene.start, ArmIntegrator(4e-3, cone="pyramid")
    for _ in range(60):
        q, v, active = peer.step(q, v, force, 4e-3)
        touched += active > 0
        state, info = integrator.step(scene.arm, state, Control(force=torch.tensor(force)[None]))
    assert touched > 5 and bool(info.converged.all())
    # the library's step follows the gap's curvature, the peer's takes it for straight: 1e-7 m a step in contact
    assert np.abs(state.q[0].numpy() - q).max() < 1e-5


def test_lemke_and_the_library_solve_the_same_problems():
    """Compare 1000 random problems with positive definite matrices, whose solutions are unique."""
    generator = np.random.default_rng(0)
    matrices = generator.normal(size=(1000, 8, 8))
    matrices = matrices @ matrices.transpose(0, 2, 1) + 0.1 * np.eye(8)
    q = generator.normal(size=(1000, 8))
    found = solve_lcp(torch.tensor(matrices), torch.tensor(q))
    assert bool((found.status == 0).all())
    for k in range(1000):
        z, solved = lemke(matrices[k], q[k])
        assert solved and np.abs(z - found.z[k].numpy()).max() < 1e-7 * (1 + np.abs(z).max())


def test_conditioned_problems_have_lemkes_velocities():
    """Compare the pyramid's velocities, which are unique where impulses are not, on 200 problems of two contacts."""
    generator = np.random.default_rng(1)
    jacobian = generator.normal(size=(200, 6, 9))
    delassus = jacobian @ jacobian.transpose(0, 2, 1)
    start = generator.normal(size=(200, 6))
    given = torch.tensor(delassus), torch.tensor(start), torch.full((200, 2), 0.5).double(), torch.ones(200, 2).bool()
    angle = torch.zeros(200, 2, dtype=torch.float64)
    ours = solve_contact(*given, cone="pyramid", directions=4, angle=angle)
    theirs = solve_conditioned(*given, Conditioning(), max_iterations=200)
    peer, close = PeerArm(0), 0
    for k in range(200):
        impulse, solved = peer.friction(delassus[k], start[k])
        velocity = delassus[k] @ impulse + start[k]
        agree = [np.abs(velocity - x.velocity[k].numpy()).max() < 1e-5 for x in (ours, theirs)]
        close += solved and all(agree)
    # friction problems may have several solutions: few of two contacts do
    assert close >= 190
    assert (ours.status == 0).all() and (theirs.status == 0).double().mean() > 0.97


def test_redundant_contacts_are_solved_together():
    """Press six contacts of equal normals: the loads are not unique, their sum and the motion are."""
    row = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    jacobian = row.repeat(6, 1)
    delassus = (jacobian @ jacobian.T)[None]
    start = torch.tensor([-1.0, 0.2, 0.0], dtype=torch.float64).repeat(6)[None]
    mu, active = torch.full((1, 6), 0.5, dtype=torch.float64), torch.ones(1, 6, dtype=torch.bool)
    for solution in (
        solve_contact(delassus, start, mu, active),
        solve_conditioned(delassus, start, mu, active, Conditioning()),
    ):
        assert solution.status.item() == 0
        assert torch.allclose(solution.impulses.view(6, 3).sum(0), torch.tensor([1.0, -0.2, 0.0]).double(), atol=1e-6)
    assert solution.dropped.sum() == 5
