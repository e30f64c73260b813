"""Curvature of rods in the frame half-way between two edges: twist turns it, and leaves its size alone."""

import math
import warnings

import pytest
import torch
from torch.func import jacrev, vmap

from torchdismech import Circle, InputError, Material, Rectangle, RobotBuilder, straight, trainable
from torchdismech.elastic import Energy
from torchdismech.geometry.rods import PAIRS_8, bend_twist
from torchdismech.geometry.vec3 import Vec3
from torchdismech.testing import check_rigid_motion, check_stencil

FORMS = {"half-way": False, "averaged": True}


class Quartic(Energy):
    """psi = kappa1^4, to be added to the energy of a rod."""

    def density(self, strain):
        """Return the density."""
        return strain[0] ** 4


def unit(v):
    """Return unit vectors."""
    return v / v.norm(dim=-1, keepdim=True)


@pytest.fixture
def springs():
    """Return 100 springs, bent and twisted at random: (e, f, theta_e, theta_f), and four anchors (100, 3)."""
    g = torch.Generator().manual_seed(0)
    random = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    x = random(100, 8)
    x[:, 3:6] = 0.5 * x[:, :3] + 0.6 * random(100, 3)
    x[:, 6:] *= 2  # twists up to 8 rad
    start_e, start_f = unit(x[:, :3] + 0.3 * random(100, 3)), unit(x[:, 3:6] + 0.3 * random(100, 3))
    anchors = [unit(torch.linalg.cross(s, random(100, 3))) for s in (start_e, start_f)]
    return x, (start_e, start_f, *anchors)


def spring(x, start_e, start_f, anchor_e, anchor_f, averaged):
    """Return the spring of local variables (8, ..)."""
    vectors = [Vec3(*v) for v in (x[:3], x[3:6])]
    frames = [Vec3(*v) for v in (start_e, start_f, anchor_e, anchor_f)]
    return bend_twist(*vectors, x[6], x[7], *frames, x.new_zeros(()), averaged)


@pytest.mark.parametrize("form", FORMS)
def test_derivatives_are_those_of_autograd(springs, form):
    """Compare first and second derivatives with autograd's of the strains."""
    x, anchors = springs

    def strains(x, *anchors):
        found = spring(x, *anchors, FORMS[form])
        return torch.stack([found.kappa1, found.kappa2, found.tau])

    first = vmap(jacrev(strains))(x, *anchors)
    second = vmap(jacrev(jacrev(strains)))(x, *anchors)
    found = spring(x.t().unsqueeze(-1), *(a.t().unsqueeze(-1) for a in anchors), FORMS[form])
    closed = torch.stack([torch.cat(row, 1) for row in found.first()], 1)
    assert (closed - first).abs().max() < 1e-13 * first.abs().max()  # rounding
    weights = torch.tensor([0.7, -1.3, 0.4], dtype=torch.float64)
    wanted = torch.einsum("k,skij->sij", weights, second)
    entries = found.second(*weights[:, None, None].expand(3, 100, 1))
    for entry, (i, j) in zip(entries, PAIRS_8, strict=True):
        assert (entry[:, 0] - wanted[:, i, j]).abs().max() < 1e-12 * wanted.abs().max()  # rounding


ROUND = Circle(2e-3)


def bent(twist, section=ROUND, curvature="half-way", angle=0.2):
    """Return the bending energy [J] of a naturally straight rod of 3 nodes, bent by an angle and twisted."""
    builder = RobotBuilder(curvature=curvature)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 3), section, Material(1e6, 1000.0))
    model = builder.finalize(compile=False)
    q = model.initial_state().q.clone()
    q[:, 6:9] = torch.tensor([0.1 + 0.1 * math.cos(angle), 0.0, 0.1 * math.sin(angle)], dtype=q.dtype)
    q[:, 9:] = torch.tensor([-0.5 * twist, 0.5 * twist], dtype=q.dtype)
    return model.energies(model.initial_state(q=q))["bend"].item()


@pytest.mark.parametrize("twist", [0.2, 1.0, 2.0, 3.0])
def test_twist_does_not_soften_round_rods(twist):
    """Take as much energy to bend a twisted round rod as a straight one; on averaged frames it is cos(tau/2)^2."""
    assert bent(twist) == pytest.approx(bent(0.0), rel=1e-12)
    softened = bent(twist, curvature="averaged") / bent(0.0, curvature="averaged")
    assert softened == pytest.approx(math.cos(0.5 * twist) ** 2, rel=1e-12)


@pytest.mark.parametrize("twist", [0.1, 0.2, 0.4])
def test_flat_rods_are_nearly_right(twist):
    """Bend a twisted strip: what the two bending stiffnesses differ by counts (1 + tau^2 / 6) times too much.

    Within a Voronoi cell the frame turns from -tau/2 to tau/2, so the mean of cos(2 phi) over it, sin(tau) / tau, is
    what the difference should count by; half-way it counts by 1. The mean of two energies, each in the frame of an
    edge (Bergou et al. 2008), counts by cos(tau), which is twice as far off; averaged frames by cos(tau/2)^2.
    """
    strip = Rectangle(8e-3, 2e-3)
    assert bent(twist, strip) == pytest.approx(bent(0.0, strip), rel=1e-12)
    exact = math.sin(twist) / twist
    assert 1 / exact - 1 == pytest.approx(twist**2 / 6, rel=0.03)  # the next term is 7 tau^4 / 360
    assert abs(1 - exact) < 0.51 * abs(math.cos(twist) - exact)


@pytest.mark.parametrize("form", FORMS)
def test_contract_holds(form):
    """Check the stencil and the motions that change no energy on a twisted strip with natural curvature."""
    builder = RobotBuilder(curvature=form)
    angle = torch.linspace(0, 1.5, 6, dtype=torch.float64)
    points = 0.1 * torch.stack([angle.sin(), 0.2 * angle, 1 - angle.cos()], 1).numpy()
    builder.add_rod(points, Rectangle(8e-3, 2e-3), Material(1e6, 1000.0))
    model = builder.finalize(compile=False)
    g = torch.Generator().manual_seed(1)
    q = model.initial_state(batch=2).q
    q = q + torch.randn(q.shape, generator=g, dtype=q.dtype) * torch.where(torch.arange(q.shape[1]) < 18, 5e-3, 0.6)
    state = model.initial_state(q=q)
    check_stencil(model.term("bend_twist").stencil, state).raise_if_failed()
    check_rigid_motion(model, state).raise_if_failed()


@pytest.mark.parametrize(
    ("section", "curvature", "twist", "more", "warns"),
    [
        (Rectangle(8e-3, 2e-3), "half-way", 1.2, False, True),
        (Rectangle(8e-3, 2e-3), "half-way", 1.2, True, True),
        (Rectangle(8e-3, 2e-3), "half-way", 0.8, False, False),
        (ROUND, "half-way", 3.0, False, False),
        (ROUND, "half-way", 3.0, True, False),
        (ROUND, "averaged", 1.2, False, True),
    ],
)
def test_too_much_twist_is_said_once(section, curvature, twist, more, warns):
    """Warn of springs that are twisted by more than a radian, where that changes how they bend.

    `more`: also where another energy, such as a learned one, is added to that of the material, and this is trained.
    """
    builder = RobotBuilder(curvature=curvature)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 3), section, Material(1e6, 1000.0))
    if more:
        builder.add_energy("bend_twist", Quartic())
    model = builder.finalize(compile=False)
    if more:
        trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"])
    q = model.initial_state().q.clone()
    q[:, 10] = twist
    state = model.initial_state(q=q)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.energies(state)
        model.energies(state)
    assert [f"twisted by {twist:.2g} rad" in str(w.message) for w in caught] == [True] * warns


def test_unknown_form_is_refused():
    """Name what there is."""
    with pytest.raises(InputError, match="curvature: expected one of 'half-way', 'averaged'"):
        RobotBuilder(curvature="mean")


def joined(order):
    """Return a model of three legs at a node, added in an order, their directions and directors, and the joint."""
    legs = [torch.tensor(x, dtype=torch.float64) for x in ([0.05, 0, 0], [-0.02, 0.04, 0.01], [-0.01, -0.03, 0.04])]
    up, builder, joint = torch.tensor([0.1, 0.2, 1.0], dtype=torch.float64), RobotBuilder(), None
    along = [unit(leg) for leg in legs]
    directors = [unit(up - (up @ t) * t) for t in along]
    for k in order:
        points = torch.stack([torch.zeros(3, dtype=torch.float64), legs[k], 2 * legs[k]])
        section, director = Rectangle(4e-3, 2e-3), directors[k].expand(2, 3)
        joint = int(builder.add_rod(points, section, Material(1e6, 1100.0), directors=director)[0])
    return builder.finalize(compile=False), [along[k] for k in order], [directors[k] for k in order], joint


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_curvatures_at_joints_are_about_the_axes_of_the_edge_that_was_added_first(order):
    """Compare the strains at rest with the curvature binormal on the section's axes of the first of each two legs."""
    model, along, directors, joint = joined(order)
    strains = model.strains(model.initial_state())
    meeting = [k for k, spring in enumerate(model.springs.tolist()) if spring[1] == joint]
    pairs = [(0, 1), (0, 2), (1, 2)]
    assert len(meeting) == len(pairs)
    for k, (first, other) in zip(meeting, pairs, strict=True):
        entering, leaving = -along[first], along[other]  # legs begin at the joint
        binormal = 2 * torch.linalg.cross(entering, leaving) / (1 + entering @ leaving)
        m1, m2 = directors[first], torch.linalg.cross(entering, directors[first])
        found = torch.stack([strains[name][0, k] for name in ("kappa1", "kappa2", "tau")])
        expected = torch.stack([binormal @ m2, -(binormal @ m1), torch.zeros((), dtype=torch.float64)])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)  # rounding
