"""Rounded edges: parallel ones have one closest pair, forces that do not jump, and steps that are found."""

import numpy as np
import pytest
import torch

from tests.contact.pairs_alone import full_table, touching_pairs, whole
from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, forces
from torchdismech.contact import Barrier, Complementarity, Friction, Penalty, SelfContact
from torchdismech.contact.constraints import _pair_contacts
from torchdismech.contact.law import ContactLaw
from torchdismech.contact.pairs.pair_loops import Geometry, vectors
from torchdismech.contact.pairs.pairs import PairTable
from torchdismech.geometry.distances import closest_segments

REACH, ROUNDING = 0.4, 0.3


def nearly_parallel(count: int = 60) -> torch.Tensor:
    """Return nodes (B, 12) of one pair of edges a robot, side by side and turned by up to the angle of rounding."""
    generator = torch.Generator().manual_seed(2)

    def noise(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    edge = torch.tensor([[0, 0, 0], [1, 0, 0], [0.2, 0, 0.4], [1.1, 0, 0.4]], dtype=torch.float64)
    return (edge + 0.02 * noise(count, 4, 3)).flatten(1)


def table(q: torch.Tensor, reach: float = REACH) -> PairTable:
    """Return a table of one pair a robot."""
    count = len(q)
    nodes = torch.arange(4).expand(count, 1, 4)
    reaches = torch.full((count, 1), reach, dtype=torch.float64)
    return full_table(closest_segments, nodes, reaches, rounding=ROUNDING)


@pytest.mark.parametrize("response", [Penalty(3.0, 0.2), Barrier(3.0, 0.3)])
def test_blocks_are_the_derivative(response):
    """Match central differences of the force, by positions and by velocities, with friction."""
    law = ContactLaw(response, Friction(0.4, 0.3))
    q = nearly_parallel()
    velocity = torch.randn(q.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    pairs = table(q, REACH if isinstance(response, Penalty) else 0.25)

    def force(q, velocity, follow=False):
        found = touching_pairs(pairs, law, q, velocity, follow)
        assert len(found.chosen) == len(q)
        return found.force().t()

    found = touching_pairs(pairs, law, q, velocity)
    slides = torch.stack([torch.stack(slide) for slide in Geometry.of(found.geometry).slides])
    both = (slides.abs().sum(1) > 0).all(0)
    assert 10 < int(both.sum()) < len(q)  # some pairs meet inside, some at an end
    for gains, argument in (((1.0, 0.0), 0), ((0.0, 1.0), 1)):
        blocks = whole(found.force_and_blocks(*gains)[1])
        at = [q.clone(), velocity.clone()]
        at[argument].requires_grad_()
        recorded = force(*at, follow=True)
        for k in range(12):
            step = torch.zeros_like(q)
            step[:, k] = 1e-6
            ends = [[q, velocity], [q, velocity]]
            ends[0][argument], ends[1][argument] = ends[0][argument] + step, ends[1][argument] - step
            difference = (force(*ends[0]) - force(*ends[1])) / 2e-6
            size = blocks.abs().amax((1, 2))[:, None]
            # truncation: angles of 0.02 rad are small against the rounding's 0.04, second differences of 1e-6 are not
            assert bool(((difference + blocks[:, :, k]).abs() < 1e-6 * size).all())
            (by_input,) = torch.autograd.grad(recorded[:, k].sum(), at[argument], retain_graph=True)
            assert torch.allclose(by_input, -blocks[:, k], atol=1e-11 * float(size.max()))


def test_geometric_stiffness_of_constraints():
    """Have the gap's gradient as the arm of its load, and that arm's derivative as the geometric stiffness."""
    q = nearly_parallel()
    pairs = table(q)
    x = q.clone().requires_grad_()
    found = _pair_contacts(pairs, x, with_stiffness=True)
    with torch.no_grad():
        by_loops = _pair_contacts(pairs, q, with_stiffness=True)
    for name in ("gap", "normal", "weights", "geometric_stiffness"):
        # rounding, times the entries' size and what the angle between the edges adds
        assert torch.allclose(getattr(by_loops, name), getattr(found, name), rtol=1e-9, atol=1e-9)
    arms = (found.weights.unsqueeze(2) * found.normal.unsqueeze(1)).flatten(1)
    (gradient,) = torch.autograd.grad(found.gap.sum(), x, retain_graph=True)
    assert torch.allclose(gradient, arms, atol=1e-12)
    for k in range(12):
        (row,) = torch.autograd.grad(arms[:, k].sum(), x, retain_graph=True)
        assert torch.allclose(row, found.geometric_stiffness[:, k], atol=1e-9)  # entries of 10 to 100 1/m


def test_distance_is_hardly_larger():
    """Keep the distance of any pair within rounding^2 / 4 of the reach, and exact for the closest points' middle."""
    nodes = torch.randn(2000, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    corners = vectors(nodes.t().contiguous())
    sharp = closest_segments(*corners).squared_distance(corners).sqrt()
    lean = torch.full_like(sharp, (0.1 * 1.5) ** 2)
    rounded = closest_segments(*corners, lean).squared_distance(corners).sqrt()
    assert bool((rounded >= sharp - 1e-15).all())
    assert bool((rounded - sharp <= lean / (4 * sharp) + 1e-15).all())


@pytest.mark.parametrize("yaw", [1e-6, *(pytest.param(yaw, marks=pytest.mark.slow) for yaw in (0.0, 1e-3, 0.03))])
@pytest.mark.parametrize("shift", [0.0, 0.003, 0.005])
@pytest.mark.parametrize("law", ["penalty", "complementarity"])
def test_rod_on_a_parallel_rod(law, shift, yaw):
    """Let a rod lie on another one, exactly parallel to it or nearly so, in few iterations a step."""
    laws = {
        "penalty": (Penalty(100.0, 5e-4), Friction(0.3, 1e-3)),
        "complementarity": (Complementarity(), Friction(0.3)),
    }
    section, material = Circle(2e-3), Material(1e6, 1100.0)
    builder = RobotBuilder()
    held = builder.add_rod(np.linspace([0, 0, 0], [0.1, 0, 0], 11), section, material)
    builder.clamp(nodes=held.tolist())
    line = np.linspace([shift, 0, 0.0045], [0.1 + shift, 0, 0.0045], 11)
    line[:, 1] += yaw * (line[:, 0] - 0.05)
    builder.add_rod(line, section, material)
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    builder.add_contact(SelfContact(*laws[law]))
    model = builder.finalize()
    state = model.initial_state()
    iterations = 0
    for _ in range(20):
        state, info = ImplicitEuler(2e-3).step(model, state, throw=True)
        iterations += int(info.iterations[0])
    assert int(info.contact["active"][0]) > 5
    # 101 at most were found; sharp edges took 400 and failed. With constraints up to 226 rounds were found, which take
    # as much time: they also find which of eleven contacts are closed.
    assert iterations <= (110 if law == "penalty" else 250)


def test_impossible_rounding():
    """Refuse what is no share of the reach."""
    with pytest.raises(InputError, match="rounding"):
        SelfContact(Complementarity(), rounding=-0.1)
