"""The sums of all terms: what they find of springs that clamped dofs are part of."""

import torch

from tests.rods import rod_through
from torchdismech import Circle, Control, Material, RobotBuilder, magnetics, straight


def magnetised(planar: bool):
    """Return a rod in a magnetic field, held in a plane or not."""
    points, force = straight((0, 0, 0), (0.3, 0, 0), 7), magnetics.Magnetic((1e3, 0.0, 2e2), (0.1, 0.0, 0.4))
    builder = RobotBuilder(planar=planar)
    return rod_through(points, Circle(2e-3), Material(1e6, 1e3), [force], "not", builder).finalize(compile=False)


def test_second_derivatives_by_clamped_dofs_are_not_found():
    """Find 16 of the 52 second derivatives of an edge and a bend in the plane, and the matrix that all of them give."""
    flat, free = magnetised(True), magnetised(False)
    generator = torch.Generator().manual_seed(0)
    bent = flat.initial_state(batch=2)
    moved = 0.01 * torch.randn(bent.q.shape, dtype=torch.float64, generator=generator)
    q = bent.q + torch.where(flat.free, moved, 0.0)
    matrices, forces = [], []
    for model in (flat, free):
        start = model.start_step(model.initial_state(batch=2), Control())
        force, values = model.mechanics.force_and_stiffness(start, q, torch.zeros_like(q), q.new_zeros(2))
        matrices.append(model.layout.pattern.to_dense(values))
        forces.append(force)
    of_plane = free.unknown[flat.unknowns.index.numpy()]
    torch.testing.assert_close(matrices[0], matrices[1][:, of_plane][:, :, of_plane], rtol=0, atol=0)
    torch.testing.assert_close(forces[0], forces[1], rtol=0, atol=0)
    edges, bends = 6, 5
    assert flat.mechanics.layout.elastic.scatter_stiffness.shape[1] == (3 + 3) * edges + 10 * bends
    assert free.mechanics.layout.elastic.scatter_stiffness.shape[1] == (6 + 10) * edges + 36 * bends
