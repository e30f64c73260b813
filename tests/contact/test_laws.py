"""Laws between two surfaces: potentials of the gap and their derivatives, friction within Coulomb's cone."""

import copy
import math
import pickle
import re
import warnings
from pathlib import Path as FilePath

import pytest
import torch

from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, Static, forces, rollout, straight
from torchdismech.contact import (
    Barrier,
    Complementarity,
    Friction,
    HalfSpace,
    Obstacle,
    Path,
    Penalty,
    Potential,
    SelfContact,
    Sphere,
)
from torchdismech.contact.law import ConstraintLaw, ContactLaw
from torchdismech.errors import InputError
from torchdismech.testing import check_force

FLOOR = HalfSpace((0, 0, 0), (0, 0, 1))
RESPONSES = {"penalty": Penalty, "barrier": Barrier}
STIFFNESS, TOLERANCE, SLIP = 40.0, 0.02, 0.1


def real(*values: float) -> torch.Tensor:
    """Return a tensor of numbers."""
    return torch.tensor(values, dtype=torch.float64)


def gaps(kind: str, count: int = 2001) -> torch.Tensor:
    """Return gaps up to beyond the tolerance, none of them at it; for a barrier above zero."""
    low = -3 * TOLERANCE if kind == "penalty" else 1e-4 * TOLERANCE
    return torch.linspace(low, 1.1 * TOLERANCE, count, dtype=torch.float64) + 1e-9


@pytest.mark.parametrize("kind", RESPONSES)
def test_derivatives_of_the_potential(kind):
    """Match autograd, twice, and central differences."""
    response = RESPONSES[kind](STIFFNESS, TOLERANCE)
    gap = gaps(kind).requires_grad_()
    constants = response.stiffness, response.tolerance
    slope, curvature = response.derivatives(gap, *constants)
    energy = response.energy(gap, *constants)
    by_gap = torch.autograd.grad(energy.sum(), gap, create_graph=True)[0]
    second = torch.autograd.grad(slope.sum(), gap)[0]
    scale = float(slope.detach().abs().max())
    assert torch.allclose(by_gap, slope, rtol=1e-9, atol=1e-12 * scale)
    assert torch.allclose(second, curvature, rtol=1e-9, atol=1e-12 * scale / TOLERANCE)
    h = 1e-4 * gap.detach().abs().clamp(1e-7, TOLERANCE)
    difference = (response.energy(gap + h, *constants) - response.energy(gap - h, *constants)) / (2 * h)
    inside = (gap < TOLERANCE - 1e-4) & (gap.abs() > 1e-6)
    # 1e-6: h^2, and rounding of small energies
    assert torch.allclose(difference[inside], slope[inside], rtol=1e-6, atol=1e-9 * scale)


@pytest.mark.parametrize("response", [Penalty(100.0, 1e-3), Barrier(1e4, 1e-3)])
def test_gaps_that_are_nan_are_not_far_apart(response):
    """Give NaN for a gap that is NaN, and for a tolerance; a finite number or infinity would hide it."""
    gap, nan = torch.tensor([torch.nan, 5e-4], dtype=torch.float64), torch.tensor(torch.nan, dtype=torch.float64)
    for tolerance, found in ((response.tolerance, [True, False]), (nan, [True, True])):
        arguments = gap, response.stiffness, tolerance
        for value in (response.energy(*arguments), *response.derivatives(*arguments)):
            assert value.isnan().tolist() == found


def test_whole_numbers_are_numbers():
    """Give stiffness, friction and a path as tensors of whole numbers: a rod on a floor moves as by floats."""
    ends = []
    for dtype in (torch.int64, torch.float64):
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 5e-3), (0.1, 0, 5e-3), 5), Circle(5e-3), Material(1e7, 1100.0))
        builder.add_force(forces.Gravity((0, 0, -9.81)))
        builder.add_contact(
            Obstacle(
                FLOOR,
                Penalty(torch.tensor(2000, dtype=dtype), 1e-4),
                Friction(torch.tensor(1, dtype=dtype), 1e-3),
                Path.uniform(torch.tensor([1, 0, 0], dtype=dtype)),
            )
        )
        model = builder.finalize()
        state = model.initial_state()
        for _ in range(10):
            state, _ = ImplicitEuler(1e-3).step(model, state, throw=True)
        ends.append(state.q)
    assert torch.equal(*ends)
    assert ends[0][0, 2] > 4.9e-3  # it lies on the floor


@pytest.mark.parametrize("kind", RESPONSES)
def test_repulsive_and_stiffening(kind):
    """Push apart the more the closer: a convex potential that falls to zero at the tolerance."""
    response = RESPONSES[kind](STIFFNESS, TOLERANCE)
    slope, curvature = response.derivatives(gaps(kind), response.stiffness, response.tolerance)
    energy = response.energy(gaps(kind), response.stiffness, response.tolerance)
    assert bool((slope <= 0).all() and (curvature >= 0).all() and (energy >= 0).all())
    assert bool((slope.diff() >= 0).all() and (energy.diff() <= 0).all())


@pytest.mark.parametrize("kind", RESPONSES)
def test_onset_at_the_tolerance(kind):
    """Start from nothing: exactly for the barrier, exp(-15) of the overlap force for the penalty."""
    response = RESPONSES[kind](STIFFNESS, TOLERANCE)
    edge = real(TOLERANCE * (1 - 1e-12), TOLERANCE, TOLERANCE * (1 + 1e-12))
    slope, curvature = response.derivatives(edge, response.stiffness, response.tolerance)
    energy = response.energy(edge, response.stiffness, response.tolerance)
    assert slope[1:].tolist() == curvature[1:].tolist() == energy[1:].tolist() == [0.0, 0.0]
    # softplus(-15) = 3.06e-7, its slope the same; times 2 k (tolerance / 15)
    jump = 2 * STIFFNESS * TOLERANCE / 15 * 3.06e-7**2 if kind == "penalty" else 1e-9
    assert -1.01 * jump <= float(slope[0]) <= 0


def test_penalty_is_a_spring_deep_inside():
    """Have 2 k times the overlap as its force, without overflow in a thousand tolerances and in single precision."""
    for dtype, rtol in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        response = Penalty(STIFFNESS, TOLERANCE).to(dtype)
        gap = -TOLERANCE * torch.tensor([3.0, 10.0, 50.0, 1e3, 1e6], dtype=dtype)
        slope, curvature = response.derivatives(gap, response.stiffness, response.tolerance)
        energy = response.energy(gap, response.stiffness, response.tolerance)
        assert torch.allclose(slope, 2 * STIFFNESS * gap, rtol=rtol)
        assert torch.allclose(curvature, torch.full_like(gap, 2 * STIFFNESS), rtol=rtol)
        assert torch.allclose(energy, STIFFNESS * gap**2, rtol=rtol)
        far = torch.tensor([1e3, 1e6], dtype=dtype)
        assert response.derivatives(far, response.stiffness, response.tolerance)[0].tolist() == [0.0, 0.0]


def test_barrier_grows_without_bound():
    """Reach any force before the gap closes, and none that is finite where surfaces overlap."""
    response = Barrier(STIFFNESS, TOLERANCE)
    constants = response.stiffness, response.tolerance
    closing = TOLERANCE * 10.0 ** -torch.arange(1, 12, dtype=torch.float64)
    slope, _ = response.derivatives(closing, *constants)
    assert bool((slope.diff() < 0).all()) and float(slope[-1]) < -1e9 * STIFFNESS * TOLERANCE
    closed = real(0.0, -1e-3 * TOLERANCE, -TOLERANCE)
    assert bool(torch.isinf(response.energy(closed, *constants)).all())
    assert bool((response.derivatives(closed, *constants)[0] == -torch.inf).all())


def test_closed_form_of_the_barrier():
    """Match k [2 (d - h) log(d/h) + (d - h)^2 / d] by hand."""
    response = Barrier(STIFFNESS, TOLERANCE)
    d = 0.25 * TOLERANCE
    expected = STIFFNESS * (2 * (d - TOLERANCE) * math.log(d / TOLERANCE) + (d - TOLERANCE) ** 2 / d)
    slope, _ = response.derivatives(real(d), response.stiffness, response.tolerance)
    assert -float(slope) == pytest.approx(expected, rel=1e-13)


def borne_by_the_page(overlap, stiffness, tolerance):
    """Return the load of a penalty (..) [N] as docs/contact.md has it, of overlaps (..) [m]."""
    x = 15 * overlap / tolerance
    return 2 * stiffness * tolerance / 15 * torch.log1p(torch.exp(x)) / (1 + torch.exp(-x))


def test_the_page_says_what_a_penalty_bears():
    """Find the formula and the table of docs/contact.md in the law, and the rule for choosing both numbers."""
    text = (FilePath(__file__).parents[2] / "docs" / "contact.md").read_text(encoding="utf-8")
    rows = re.search(r"\| load / \(2 stiffness tolerance\) \|([^\n]*)\n[^\n]*\n\| o / tolerance \|([^\n]*)\n", text)
    assert rows is not None
    loads, overlaps = (real(*map(float, row.strip(" |").split("|"))) for row in rows.groups())
    response = Penalty(STIFFNESS, TOLERANCE)
    slope, _ = response.derivatives(-overlaps * TOLERANCE, response.stiffness, response.tolerance)
    torch.testing.assert_close(-slope, borne_by_the_page(overlaps * TOLERANCE, STIFFNESS, TOLERANCE))
    assert -slope / (2 * STIFFNESS * TOLERANCE) == pytest.approx(loads, rel=0.035)  # two digits
    chosen, load = 1e-4, 1e-2  # m, N
    stiffness, tolerance = load / (2 * chosen), 5 * chosen
    least, most = borne_by_the_page(chosen * real(1.0, 1.035), stiffness, tolerance)  # to 3 %
    assert least < load < most
    assert borne_by_the_page(real(-1.4 * chosen), stiffness, tolerance) < 1e-4 * load
    ten_times = borne_by_the_page(0.1 * chosen * overlaps, 10 * stiffness, 0.1 * tolerance)
    torch.testing.assert_close(ten_times, borne_by_the_page(chosen * overlaps, stiffness, tolerance))


def test_more_stiffness_without_less_tolerance_ends_in_floating():
    """Let three rods of 3 mm come to rest on a floor, the second and third with ten times the stiffness of the first.

    The second floats, as its tolerance is that of the first. The floor bears the weight of each by the page's formula.
    """
    stiffness, tolerance = real(100, 1000, 1000)[:, None], real(5e-4, 5e-4, 2e-5)[:, None]
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((-0.05, 0, 3e-3), (0.05, 0, 3e-3), 5), Circle(3e-3), Material(1e6, 1100.0))
    builder.clamp(nodes=[2], axes="x")
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    builder.add_contact(Obstacle(FLOOR, Penalty(stiffness, tolerance)))
    model = builder.finalize()
    state, info = Static().step(model, model.initial_state(), throw=True)
    overlap = 3e-3 - state.positions[:, :, 2]
    weight = 9.81 * float(model.body.node_mass().sum())
    # 1e-6: Static leaves 1e-12 N
    assert borne_by_the_page(overlap, stiffness, tolerance).sum(1) == pytest.approx(real(weight).expand(3), rel=1e-6)
    assert 1e6 * overlap[:, 2] == pytest.approx(real(42, -27, 4), abs=0.5)  # as docs/contact.md has it
    assert bool((overlap[1] < 0).all()) and float(info.contact["penetration"][1]) == 0


def test_the_page_says_how_friction_sets_in():
    """Find both laws of smoothed friction of docs/contact.md, and how fast it says that what sticks creeps."""
    y = torch.linspace(0.01, 2, 200, dtype=torch.float64)
    slip = real(SLIP)
    said = {"penalty": torch.tanh(7.5 * y), "barrier": torch.where(y < 1, 2 * y - y**2, 1.0)}
    for kind, gamma in said.items():
        torch.testing.assert_close(RESPONSES[kind].slipping(y * SLIP, slip)[0] * y * SLIP, gamma)
    creeps = ("penalty", 0.5, 0.073), ("barrier", 0.5, 0.29), ("penalty", 0.1, 0.013), ("barrier", 0.1, 0.051)
    for kind, share, creeping in creeps:
        ratio, _ = RESPONSES[kind].slipping(real(creeping * SLIP), slip)
        assert ratio * creeping * SLIP == pytest.approx(share, rel=0.03), kind  # two digits


@pytest.mark.parametrize("kind", RESPONSES)
def test_limits_of_slipping(kind):
    """Rise from a finite slope at rest to (nearly) one at the slip velocity, and stay there."""
    speed = torch.cat([real(0.0), torch.logspace(-14, 3, 400, dtype=torch.float64) * SLIP])
    ratio, rise = RESPONSES[kind].slipping(speed, torch.tensor(SLIP, dtype=torch.float64))
    gamma = ratio * speed
    steepest = {"penalty": 7.5 / SLIP, "barrier": 2 / SLIP}[kind]
    assert float(ratio[0]) == pytest.approx(steepest, rel=1e-14) == float(rise[0])
    assert bool((gamma <= 1 + 1e-15).all() and (gamma.diff() >= -1e-15).all() and (rise >= 0).all())
    beyond = gamma[speed >= SLIP]
    assert float(beyond.min()) >= {"penalty": 1 - 2 * math.exp(-15), "barrier": 1 - 1e-15}[kind]
    h = 1e-6 * SLIP
    middle = torch.linspace(0.01, 3, 200, dtype=torch.float64) * SLIP + 1e-5 * SLIP

    def gammas(v):
        return RESPONSES[kind].slipping(v, torch.tensor(SLIP, dtype=torch.float64))[0] * v

    slope = (gammas(middle + h) - gammas(middle - h)) / (2 * h)
    expected = RESPONSES[kind].slipping(middle, torch.tensor(SLIP, dtype=torch.float64))[1]
    # h^2 / 6 times the third derivative, up to (15 / SLIP)^3 / 8, and rounding over h: 2e-9 seen
    assert torch.allclose(slope, expected, rtol=0, atol=2e-9 / SLIP)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", RESPONSES)
def test_within_the_cone(kind, dtype):
    """Keep friction against the sliding and within mu times the normal force, at all speeds."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.nn.functional.normalize(torch.randn(500, 3, generator=generator, dtype=torch.float64), dim=1)
    speed = 10 ** (12 * torch.rand(500, 1, generator=generator, dtype=torch.float64) - 9)
    velocity = speed * torch.randn(500, 3, generator=generator, dtype=torch.float64)
    gap = torch.rand(500, generator=generator, dtype=torch.float64) * TOLERANCE + 1e-6
    law = ContactLaw(RESPONSES[kind](STIFFNESS, TOLERANCE), Friction(0.4, SLIP)).to(dtype)
    normal, velocity, gap = (x.to(dtype) for x in (normal, velocity, gap))
    force = law.forces(gap[None], normal[None], velocity[None])[0]
    load = (force * normal).sum(1)
    rubbing = force - load[:, None] * normal
    sliding = velocity - (velocity * normal).sum(1, keepdim=True) * normal
    rounding = 50 * torch.finfo(dtype).eps
    assert bool((load >= 0).all())
    assert bool((rubbing.norm(dim=1) <= (0.4 + rounding) * load).all())
    assert bool(((rubbing * sliding).sum(1) <= rounding * load * sliding.norm(dim=1)).all())
    smooth = ContactLaw(law.response).to(dtype)
    alone = smooth.forces(gap[None], normal[None], velocity[None])[0]
    assert torch.allclose(alone, load[:, None] * normal, rtol=rounding)


@pytest.mark.parametrize("rough", [(), (0.4, SLIP), (0.4, SLIP, 0.7, 3.0)], ids=["smooth", "rough", "static"])
@pytest.mark.parametrize("kind", RESPONSES)
def test_force_and_derivatives(kind, rough):
    """Match central differences on a sphere, at rest, sticking and sliding."""
    generator = torch.Generator().manual_seed(1)
    friction = Friction(*rough) if rough else None
    law = ContactLaw(RESPONSES[kind](STIFFNESS, TOLERANCE), friction)
    out = torch.nn.functional.normalize(torch.randn(60, 3, generator=generator, dtype=torch.float64), dim=1)
    x = out * (1 + TOLERANCE * (0.1 + 0.8 * torch.rand(60, 1, generator=generator, dtype=torch.float64)))
    v = SLIP * torch.randn(60, 3, generator=generator, dtype=torch.float64)
    v[:20] = 0
    v[20:40] *= 0.1
    v[50:] *= 10  # faster than the release
    unit = torch.eye(3, dtype=torch.float64)

    def force(x, v):
        length = x.norm(dim=1, keepdim=True)
        return law.forces(length.T - 1, (x / length)[None], v[None])[0]

    length = x.norm(dim=1, keepdim=True)
    normal = x / length
    curvature = (unit - normal[:, :, None] * normal[:, None, :]) / length[..., None]
    found, by_x, by_v = law.forces_and_derivatives(length.T - 1, normal[None], curvature[None], v[None])
    found, by_x, by_v = found[0], by_x[0], None if by_v is None else by_v[0]
    assert torch.allclose(found, force(x, v), rtol=1e-14, atol=1e-14 * float(found.abs().max()))
    assert (by_v is None) == (friction is None)
    h = 1e-7  # of a length of 0.02 and a velocity of 0.1: truncation 1e-10, or 1e-6 where the slope of gamma turns
    for axis in range(3):
        step = h * unit[axis]
        for by, difference in (
            (by_x, (force(x + step, v) - force(x - step, v)) / (2 * h)),
            (by_v, (force(x, v + step) - force(x, v - step)) / (2 * h)),
        ):
            if by is not None:
                error = (by[:, :, axis] - difference).abs().amax(1) / by.abs().amax((1, 2)).clamp_min(1e-12)
                assert float(error.max()) < 1e-6  # see h: 1e-8, and 5e-7 where the slope turns
            else:
                assert float(difference.abs().max()) == 0


@pytest.mark.parametrize("rough", [(0.4, SLIP), (0.4, SLIP, 0.7, 3.0)], ids=["rough", "static"])
@pytest.mark.parametrize("kind", RESPONSES)
def test_tractions(kind, rough):
    """Hold derivatives to a traction: its own gives Newton's; what is expected is by these, within the cone."""
    generator = torch.Generator().manual_seed(2)
    law = ContactLaw(RESPONSES[kind](STIFFNESS, TOLERANCE), Friction(*rough))
    normal = torch.nn.functional.normalize(torch.randn(1, 40, 3, generator=generator, dtype=torch.float64), dim=2)
    v, change = SLIP * torch.randn(2, 1, 40, 3, generator=generator, dtype=torch.float64)
    gap, flat = torch.full((1, 40), 0.3 * TOLERANCE, dtype=torch.float64), torch.zeros(1, 40, 3, 3).double()
    force, by_x, by_v = law.forces_and_derivatives(gap, normal, flat, v)
    load = (force * normal).sum(2, keepdim=True)
    own = law.tractions(normal, v)
    assert torch.allclose(load * (normal - own), force, rtol=1e-13, atol=1e-13 * float(load.max()))
    for found, known in zip(law.forces_and_derivatives(gap, normal, flat, v, own), (force, by_x, by_v), strict=True):
        assert torch.allclose(found, known, rtol=1e-11, atol=1e-13 * float(known.abs().max()))
    small = 1e-3 * change  # so that the cone does not matter but at its edge
    held = 0.2 * torch.nn.functional.normalize(torch.linalg.cross(normal, v), dim=2)
    for traction in (0.5 * own, held):
        _, _, by = law.forces_and_derivatives(gap, normal, flat, v, traction)
        expected = own - (by @ small.unsqueeze(3)).squeeze(3) / load
        expected = expected - normal * (normal * expected).sum(2, keepdim=True)
        largest = rough[2] if len(rough) > 2 else rough[0]
        size = expected.norm(dim=2, keepdim=True)
        expected = expected * (largest / size).clamp_max(1.0)
        assert torch.allclose(law.expected_tractions(normal, v, small, traction), expected, rtol=1e-11, atol=1e-13)
    far = law.expected_tractions(normal, v, 1e3 * change, own).norm(dim=2)
    assert float(far.max()) <= largest * (1 + 1e-14)
    still = law.expected_tractions(normal, torch.zeros_like(v), torch.zeros_like(v), torch.zeros_like(v))
    assert torch.equal(still, torch.zeros_like(v))


@pytest.mark.parametrize("kind", RESPONSES)
def test_static_and_sliding_coefficients(kind):
    """Rub by the static coefficient at the slip velocity, by the other from the release on, in between by less."""
    law = ContactLaw(RESPONSES[kind](STIFFNESS, TOLERANCE), Friction(0.4, SLIP, static=0.7, release=3.0))
    speed = torch.cat([real(SLIP, 3 * SLIP, 1e3 * SLIP), torch.linspace(SLIP, 3 * SLIP, 50, dtype=torch.float64)])
    normal, velocity = (torch.zeros(1, len(speed), 3, dtype=torch.float64) for _ in range(2))
    normal[..., 2], velocity[..., 0] = 1, speed
    force = law.forces(torch.full_like(speed, 0.5 * TOLERANCE)[None], normal, velocity)[0]
    found = -force[:, 0] / force[:, 2]
    # 1e-6: the penalty's friction has all but 2 exp(-15) of its size at the slip velocity
    assert found[:3].tolist() == pytest.approx([0.7, 0.4, 0.4], rel=1e-6)
    assert bool((found[3:].diff() < 0).all())
    # in between friction has its full size, to rounding
    assert float(found[3:][25]) == pytest.approx(0.7 - 0.3 * (25 / 49) ** 2 * (3 - 50 / 49), rel=1e-12)


def test_angles_of_friction_are_warned_of():
    """Say of 30 that it is a coefficient, and which one is that of 30 degrees; take 1.5 without a word."""
    with pytest.warns(
        UserWarning, match=r"Friction.coefficient: 30 .* of 30 degrees is the coefficient 0\.577"
    ) as said:
        Friction(30.0, 1e-3)
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Friction(1.5, 1e-3)


class Spring(Potential):
    """A law of a user's own: phi = k (tolerance - d)^2 / 2, friction as the barrier's."""

    def energy(self, gap, stiffness, tolerance):
        """Return phi."""
        return 0.5 * stiffness * (tolerance - gap).clamp(min=0) ** 2

    def derivatives(self, gap, stiffness, tolerance):
        """Return -k (tolerance - d) and k inside, zero beyond."""
        apart = gap >= tolerance
        return torch.where(apart, 0.0, stiffness * (gap - tolerance)), torch.where(apart, 0.0, stiffness)

    slipping = staticmethod(Barrier.slipping)


def test_formulas_are_shared_by_laws_of_the_library():
    """Have the same formulas as others of a kind, copied or pickled, too; laws of a user's own have theirs."""
    rough, fall = Friction(0.4, SLIP), Friction(0.4, SLIP, static=0.7)
    law = ContactLaw(Penalty(STIFFNESS, TOLERANCE), rough)
    for other in (ContactLaw(Penalty(1.0, 1.0), Friction(0.1, 1.0)), copy.deepcopy(law), _pickled(law)):
        assert other.formulas is law.formulas
    unlike = [ContactLaw(Penalty(1.0, 1.0)), ContactLaw(Penalty(1.0, 1.0), fall), ContactLaw(Barrier(1.0, 1.0), rough)]
    own = [ContactLaw(Spring(1.0, 1.0), rough) for _ in range(2)]
    every = [law, *unlike, *own, copy.deepcopy(own[0])]
    assert len({id(each.formulas) for each in every}) == len(every)
    for each in own:
        assert each.formulas.response is each.response
    assert every[-1].formulas.response is every[-1].response


def _pickled(module: torch.nn.Module) -> torch.nn.Module:
    return pickle.loads(pickle.dumps(module))


def test_own_law_of_an_obstacle():
    """Lie on a floor where springs of one's own bear the weight; rub on it with exact derivatives, in two robots."""
    radius, tolerance, stiffness = 2e-3, 1e-3, real(20.0, 40.0)[:, None]
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, radius), (0.05, 0, radius), 6), Circle(radius), Material(1e6, 1e3))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    floor = Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Spring(stiffness, tolerance), Friction(0.3, SLIP))
    builder.add_contact(floor)
    builder.clamp(nodes=[0], axes="x")
    model = builder.finalize()
    state, info = Static().step(model, model.initial_state(), throw=True)
    weight = 9.81 * model.body.node_mass().sum()
    gap = state.positions[:, :, 2] - radius
    # the sum of the springs' forces is the weight, to the tolerance of the search
    assert torch.allclose((stiffness * (tolerance - gap)).sum(1), weight.expand(2), rtol=1e-6)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 2, model.n_dofs, dtype=torch.float64, generator=generator)
    check_force(floor, model, state.replace(q=state.q + 1e-4 * noise[0], velocity=0.1 * noise[1])).raise_if_failed()


def test_own_law_between_parts():
    """Push two rods that cross apart by no more than their overlap in a law of one's own asks for."""
    radius, tolerance, builder = 2e-3, 1e-3, RobotBuilder()
    height = 2 * radius + 0.5 * tolerance
    builder.add_rod(straight((-0.05, 0, 0), (0.05, 0, 0), 6), Circle(radius), Material(1e6, 1e3))
    builder.add_rod(straight((0, -0.05, height), (0, 0.05, height), 6), Circle(radius), Material(1e6, 1e3))
    builder.add_contact(SelfContact(Spring(20.0, tolerance), Friction(0.3, SLIP), rounding=0))
    model = builder.finalize()
    energy, state = [], model.initial_state()
    for _ in range(20):
        energy.append(sum(part.item() for part in model.energies(state).values()))
        state, _ = ImplicitEuler(2e-3).step(model, state, throw=True)
    # what they begin with: k (tolerance / 2)^2 / 2 where they cross
    assert energy[0] == pytest.approx(0.5 * 20.0 * (0.5 * tolerance) ** 2, rel=1e-12)
    assert all(after <= before * (1 + 1e-9) for before, after in zip(energy, energy[1:], strict=False))
    middles = state.node_velocities.unflatten(1, (2, 6)).mean(2)[0, :, 2]
    # implicit steps keep momentum to their tolerance, 1e-8 of the forces
    assert middles[1] > 0 and middles.sum().item() == pytest.approx(0, abs=1e-6 * middles[1].item())


def test_a_law_says_what_it_lacks():
    """Name the class and the method that is missing."""

    class Nothing(Potential):
        """Defines none of them."""

    model = SelfContact(Nothing(20.0, 1e-3)).law.response
    for method in ("energy", "derivatives"):
        with pytest.raises(TypeError, match=rf"Nothing has to define {method}\(gap, stiffness, tolerance\)"):
            getattr(model, method)(real(0.0), model.stiffness, model.tolerance)
    with pytest.raises(TypeError, match="has to define slipping"):
        model.slipping(real(0.0), real(1.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Penalty(0.0, 1e-3),
        lambda: Penalty(1.0, -1e-3),
        lambda: Barrier(1.0, 0.0),
        lambda: Barrier(float("nan"), 1e-3),
        lambda: Friction(-0.1, 1e-3),
        lambda: Friction(0.3, 0.0),
        lambda: ContactLaw(Penalty(1.0, 1e-3), Friction(0.3)),
        lambda: Friction(0.3, 1e-3, static=0.2),
        lambda: Friction(0.3, 1e-3, static=float("nan")),
        lambda: Friction([[0.1], [0.2]], 1e-3, static=[[0.3], [0.3], [0.3]]),
        lambda: Friction(0.3, 1e-3, static=0.4, release=1.0),
        lambda: Friction(0.3, 1e-3, release=2.0),
        lambda: ConstraintLaw(Complementarity(), Friction(0.3, static=0.4)),
        lambda: Penalty("stiff", 1e-3),
        lambda: Friction(None, 1e-3),
        lambda: Obstacle("floor", Penalty(1.0, 1e-3)),
        lambda: Obstacle(FLOOR, Penalty(1.0, 1e-3), 0.3),
        lambda: Obstacle(FLOOR, Penalty(1.0, 1e-3), path=[0.0, 1.0]),
        lambda: Obstacle(Sphere((0, 0, 0), 1.0), Penalty(1.0, 1e-3), spacing=True),
        lambda: SelfContact(Penalty(1.0, 1e-3), 0.3),
    ],
)
def test_refused(make):
    """Refuse constants that make no law."""
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize("what", ["floor", "parts"])
@pytest.mark.parametrize("gap", [0.0, -1e-3, 1e-17, 4e-10])
def test_a_barrier_needs_a_gap_at_the_start(what, gap):
    """Refuse a start at which the barrier is infinite, or its gap no more than rounding, naming robot and node."""
    radius, builder = 2e-3, RobotBuilder()
    builder.add_rod(straight((-0.05, 0, radius + gap), (0.05, 0, radius + gap), 7), Circle(radius), Material(1e6, 1e3))
    barrier = Barrier(100.0, 1e-3)
    if what == "floor":
        builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), barrier))
    else:
        height = 3 * radius + 2 * gap
        builder.add_rod(straight((0, -0.05, height), (0, 0.05, height), 8), Circle(radius), Material(1e6, 1e3))
        builder.add_contact(SelfContact(barrier, rounding=0))
    model = builder.finalize()
    for call in (model.initial_state, lambda: model.thrown(model.rest_state(1), (0.0, 0.0, 1.0))):
        with pytest.raises(InputError, match="^robot 0, node .* the gap to .* Barrier needs a gap"):
            call()


def over_floor(height, gap, friction):
    """Return a rod of 5 cm and .69 g at a gap above a floor at some height, which falls upwards."""
    builder = RobotBuilder()
    z = height + 2e-3 + gap
    builder.add_rod(straight((0, 0, z), (0.05, 0, z), 6), Circle(2e-3), Material(1e6, 1100.0))
    builder.add_force(forces.Gravity((0.0, 0.0, 9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, height), (0, 0, 1)), Barrier(10.0, 1e-3), friction, name="floor"))
    return builder.finalize()


@pytest.mark.parametrize("rough", [False, True])
def test_a_barrier_that_is_nearly_closed_does_not_hold_what_it_pushes(rough):
    """Find the root of a step that begins so close to a barrier that rounding there is as large as all loads.

    At 100 m coordinates are rounded to 1.4e-14 m; at a gap of 2e-9 m the barrier has a stiffness of 2.5e12 N/m, so that
    a residual of .1 N is nothing there. The force that the step begins with, 5,000 N at each node, is real.
    """
    near, far = (over_floor(100.0, gap, Friction(0.3, 1e-3) if rough else None) for gap in (2e-9, 0.5))
    weight = float(far.body.mass.sum() / 3) * 9.81
    for model, least in ((near, 1e-4), (far, 0.0)):
        start = model.initial_state()
        state, info = ImplicitEuler(dt=2e-3, max_iterations=200).step(model, start, throw=True)
        assert float(info.residual) <= float(info.tolerance)
        assert float(info.residual) < weight / 50  # the relative tolerance, 1e-8 of 1.2e4 N, is a 57th
        assert float((state.q - start.q)[0, 2:18:3].min()) > least  # .1 mm: it is pushed out, by its tolerance


@pytest.mark.parametrize("way", ["newton", "primal-dual", "constraints"])
def test_rounding_far_away_is_no_failure(way):
    """Let a rod come to rest on a barrier where rounding is above the tolerance that is asked for, in every step.

    At 1e5 m a rod whose nodes are 1 cm apart has a noise of 2 x 2.2e-16 x 1e5 m x 1.3e4 N/m, 6e-7 N; asked
    for is 2e-10 N.
    """
    builder = RobotBuilder()
    z = 1e5 + 2.5e-3
    builder.add_rod(straight((0, 0, z), (0.05, 0, z), 6), Circle(2e-3), Material(1e7, 1100.0))
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    friction = Friction(0.3, 1e-2) if way == "primal-dual" else None
    builder.add_contact(Obstacle(HalfSpace((0, 0, 1e5), (0, 0, 1)), Barrier(1.0, 1e-3), friction, name="floor"))
    if way == "constraints":
        builder.add_contact(Obstacle(HalfSpace((0, 0, 1e5 - 1), (0, 0, 1)), Complementarity(), name="ground"))
    model = builder.finalize()
    run = rollout(model, model.initial_state(), ImplicitEuler(dt=5e-3), steps=60)
    assert not run.status.any()
    _, info = ImplicitEuler(dt=5e-3).step(model, run.state)
    assert 1e-9 < float(info.residual) <= float(info.tolerance) < 1e-4  # of the noise
    assert run.iterations[-10:].double().mean() < 5
    weight = float(model.body.mass.sum() / 3) * 9.81
    assert float(run.contact["force/floor"][-1, 0, 2]) == pytest.approx(weight, rel=1e-3)
