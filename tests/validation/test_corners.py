"""Rods with corners, rods that branch and shells with folds, against beam theory: errors are those of straight ones."""

import functools
import math

import numpy as np
import pytest
import torch

from torchdismech import (
    Circle,
    ImplicitEuler,
    Material,
    Rectangle,
    RobotBuilder,
    Static,
    forces,
    modes,
    straight,
    testing,
)
from torchdismech.builder import corners
from torchdismech.elastic import Corners, Energy, LinearElastic, Maxwell, Plastic

YOUNGS, POISSON, LEG = 1e7, 0.3, 0.05
RADIUS, THICK = 1e-3, 1e-3
SMALL = 1e-7  # N, by which a leg turns by some 1e-4: theory is that of small turns
FACE = Material(YOUNGS, 1100.0, POISSON)


def turned(points, angle):
    """Return points, turned about an axis that is that of no frame, so that nothing lies along an axis."""
    axis = np.array([0.3, -0.5, 0.8])
    axis = axis / np.linalg.norm(axis)
    points = np.asarray(points, dtype=float)
    cos, sin = math.cos(angle), math.sin(angle)
    return cos * points + sin * np.cross(axis, points) + (1 - cos) * np.outer(points @ axis, axis).reshape(points.shape)


def bracket(edges: int, corner: float, **options):
    """Return a clamped rod of two legs, the second turned by an angle [rad] in the plane, and its last node."""
    direction = np.array([math.cos(corner), math.sin(corner), 0.0])
    steps = np.concatenate([np.tile([1.0, 0, 0], (edges, 1)), np.tile(direction, (edges, 1))]) * LEG / edges
    points = turned(np.concatenate([np.zeros((1, 3)), steps.cumsum(0)]), 0.7)
    builder = RobotBuilder(**options)
    rod = builder.add_rod(points, Circle(RADIUS), FACE)
    builder.clamp(nodes=[rod[0]], direction="rest")
    return builder, int(rod[-1])


def moved(builder, tip: int, force) -> np.ndarray:
    """Return how far the tip goes in equilibrium [m]."""
    builder.add_force(forces.PointForce([tip], tuple(force)))
    model = builder.finalize(compile=False)
    state, _ = Static(force_tolerance=1e-14, relative_tolerance=1e-9).step(model, model.initial_state(), throw=True)
    return (state.positions[0, tip] - model.nodes[tip]).detach().numpy()


def bracket_by_theory(corner: float, axis: int) -> float:
    """Return how far the tip of a bracket goes by a force of one along an axis of its own, by Castigliano [m/N]."""
    bending = YOUNGS * math.pi * RADIUS**4 / 4
    twisting = YOUNGS / (2 * (1 + POISSON)) * math.pi * RADIUS**4 / 2
    along = np.array([math.cos(corner), math.sin(corner), 0.0])
    place, weight = np.polynomial.legendre.leggauss(4)  # exact for moments squared, which are of second degree
    force, total = np.eye(3)[axis], 0.0
    for start, direction in ((np.zeros(3), np.array([1.0, 0, 0])), (np.array([LEG, 0, 0]), along)):
        for x, w in zip(place, weight, strict=True):
            arm = np.array([LEG, 0, 0]) + LEG * along - start - 0.5 * (x + 1) * LEG * direction
            moment = np.cross(arm, force)
            twist = moment @ direction
            total += 0.5 * w * LEG * ((moment @ moment - twist**2) / bending + twist**2 / twisting)
    return total


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("corner", [60, 90, 120])
def test_a_corner_bends_as_its_halves_do(corner, axis):
    """Go to theory by the second order in the edges' length, in the plane of the corner and out of it."""
    angle, off = math.radians(corner), []
    for edges in (4, 8):
        builder, tip = bracket(edges, angle)
        force = turned(SMALL * np.eye(3)[axis], 0.7)
        off.append(moved(builder, tip, force) @ force / SMALL**2 / bracket_by_theory(angle, axis) - 1)
    # a straight cantilever of 8 edges is off by .8 %, this by up to 2; with the papers' springs by -6 to -30 %
    assert abs(off[1]) < 0.025 and off[0] / off[1] == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("axis", [1, 2])
def test_what_branches_off_leaves_a_rod_as_soft_as_it_was(axis):
    """Bend a rod with two free stubs at each of its nodes, along them and across, as the rod without."""
    plain = RobotBuilder()
    rod = plain.add_rod(straight((0, 0, 0), (LEG, 0, 0), 11), Circle(RADIUS), FACE)
    plain.clamp(nodes=[rod[0]], direction="rest")
    comb = RobotBuilder()
    comb.add_rod(straight((0, 0, 0), (LEG, 0, 0), 11), Circle(RADIUS), FACE)
    for k in range(1, 10):
        for side in (1, -1):
            start = np.array([k * LEG / 10, 0, 0])
            comb.add_rod(straight(start, start + [0, side * LEG / 10, 0], 2), Circle(RADIUS), FACE)
    comb.clamp(nodes=[rod[0]], direction="rest")
    force = SMALL * np.eye(3)[axis]
    expected = moved(plain, int(rod[-1]), force)[axis]
    # stubs turn with the rod, and their springs stay as they are, but for the square of a turn of 1e-4
    assert moved(comb, int(rod[-1]), force)[axis] == pytest.approx(expected, rel=1e-6)


def test_a_cross_of_four_arms_is_rigid_at_its_joint():
    """Push the end of an arm whose three neighbours are clamped: the joint turns against their stiffness."""
    off = []
    for edges in (4, 8):
        builder, ends = RobotBuilder(), []
        for direction in ([1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]):
            end = LEG * np.array(direction, dtype=float)
            arm = builder.add_rod(straight((0, 0, 0), end, edges + 1), Circle(RADIUS), FACE)
            ends.append(int(arm[-1]))
        for end in ends[1:]:
            builder.clamp(nodes=[end], direction="rest")
        found = moved(builder, ends[0], (0, SMALL, 0))[1]
        bending = YOUNGS * math.pi * RADIUS**4 / 4
        stretch = YOUNGS * math.pi * RADIUS**2 / LEG
        # the joint turns against three arms, 4 EI / L each, and goes aside against two that stretch and bend
        aside = SMALL / (2 * stretch + 12 * bending / LEG**3)
        theory = SMALL * LEG**3 / (3 * bending) + SMALL * LEG / (3 * 4 * bending / LEG) * LEG + aside
        off.append(found / theory - 1)
    assert abs(off[1]) < 0.015 and off[0] / off[1] == pytest.approx(4, rel=0.15)  # as above


def test_a_flat_section_bends_by_its_own_axes():
    """Bend the corner of a ribbon about its stiff axis and about its soft one."""
    width, height = 4e-3, 1e-3
    for flat in (True, False):
        off = []
        for edges in (8, 16):
            steps = np.concatenate([np.tile([1.0, 0, 0], (edges, 1)), np.tile([0, 1.0, 0], (edges, 1))]) * LEG / edges
            points = np.concatenate([np.zeros((1, 3)), steps.cumsum(0)])
            across = np.cross([0, 0, 1.0], steps * edges / LEG)
            directors = np.tile([0, 0, 1.0], (2 * edges, 1)) if flat else across
            builder = RobotBuilder()
            rod = builder.add_rod(points, Rectangle(width, height), FACE, directors=directors)
            builder.clamp(nodes=[rod[0]], direction="rest")
            second = {"width": height * width**3 / 12, "height": width * height**3 / 12}
            found = moved(builder, int(rod[-1]), (SMALL, 0, 0))[0]
            sizes = [LEG**3 / 3 + LEG * LEG**2, LEG / (YOUNGS * width * height)]
            ratios = [found / (SMALL * (sizes[0] / (YOUNGS * i) + sizes[1])) - 1 for i in second.values()]
            off.append(min(ratios, key=abs))
        assert abs(off[1]) < 0.005 and off[0] / off[1] == pytest.approx(4, rel=0.1)


def half_round(of_ribbon: float, of_round: float | None) -> np.ndarray:
    """Return how far the tip of a cantilever sags whose first half is a ribbon, its second round [m].

    Parameters
    ----------
    of_ribbon, of_round : by how much their directors are turned from up [rad]; None: not given.
    """
    builder = RobotBuilder()
    for k, (section, angle) in enumerate(((Rectangle(width=8e-3, height=2e-3), of_ribbon), (Circle(2e-3), of_round))):
        points = straight((k * LEG, 0, 0), ((k + 1) * LEG, 0, 0), 4)
        directors = None if angle is None else np.tile([0, -math.sin(angle), math.cos(angle)], (3, 1))
        builder.add_rod(points, section, FACE, directors=directors)
    builder.clamp(nodes=[0], direction="rest")
    return moved(builder, 6, (0, 0, -SMALL))


@pytest.mark.parametrize("of_round", [None, 0.0, -0.3])
def test_directors_of_round_rods_do_not_matter(of_round):
    """Bend a ribbon that goes on as a round rod alike for all directors of that one."""
    # forces are balanced to 1e-14 N, at some 3 m/N; with axes half-way between the rods' tips were 1e-8 m off
    np.testing.assert_allclose(half_round(0.6, of_round), half_round(0.6, 0.6), rtol=0, atol=1e-12)


def test_directors_that_are_given_carry_on():
    """Carry the directors of a rod on to one whose own are not given, around the corner between them."""
    builder = RobotBuilder()
    across = [0, math.sin(0.4), math.cos(0.4)]
    first = builder.add_rod([[0, 0, 0], [1, 0, 0]], Circle(RADIUS), FACE, directors=[across])
    builder.add_rod([[1, 0, 0], [1, *across[1:]]], Circle(RADIUS), FACE)
    builder.clamp(nodes=[first[0]])
    found = builder.finalize(compile=False).body.directors[:2].numpy()
    np.testing.assert_allclose(found, [across, [-1, 0, 0]], atol=1e-12)


def looped(angle: float) -> np.ndarray:
    """Return how far the nodes of a ribbon with a loop of a round rod go, built turned and turned back [m]."""
    builder = RobotBuilder()
    line = np.linspace(0, LEG, 5)[:, None] * [1.0, 0.2, 0.1]
    way = np.array([line[2], line[2] + [0.01, 0.01, 0.02], line[4] + [0, 0.01, 0.01], line[4]])
    across = np.cross(line[1], [0.1, 0.3, 1])
    across = turned(np.tile(across / np.linalg.norm(across), (4, 1)), angle)
    builder.add_rod(turned(line, angle), Rectangle(4e-3, 1e-3), FACE, directors=across)
    builder.add_rod(turned(way, angle), Circle(RADIUS), FACE)
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.PointForce([6], tuple(turned([0, 0, 1e-2], angle))))
    model = builder.finalize(compile=False)
    state, _ = Static(force_tolerance=1e-13, relative_tolerance=1e-10).step(model, model.initial_state(), throw=True)
    return turned((state.positions[0] - model.nodes).detach().numpy(), -angle)


def test_loops_of_unlike_rods_bend_as_they_do_when_turned():
    """Bend a loop of a ribbon and a round rod as one that is turned in space, where frames begin otherwise."""
    expected = looped(0.0)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(looped(1.1), expected, rtol=0, atol=1e-9)


def folded(squares: int, fold: float):
    """Return a strip that is folded to and fro, its clamp at one end, the nodes at the other, and its middle line."""
    legs, width = 4, LEG / 2
    turns = np.repeat([0.5 * fold * (-1) ** k for k in range(legs)], squares)
    steps = np.stack([np.cos(turns), 0 * turns, np.sin(turns)], axis=1) * LEG / squares
    line = np.concatenate([np.zeros((1, 3)), steps.cumsum(0)])
    across = np.linspace(0, width, squares // 2 + 1)
    grid = line[:, None] + np.array([0, 1.0, 0]) * across[:, None]
    number = np.arange(grid.shape[0] * grid.shape[1]).reshape(grid.shape[:2])
    a, b, c, d = (x.ravel() for x in (number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:]))
    triangles = np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)])
    builder = RobotBuilder()
    builder.add_shell(grid.reshape(-1, 3), triangles, THICK, Material(YOUNGS, 1100.0, 0.0))
    builder.clamp(nodes=number[0])
    return builder, number[-1], line


@pytest.mark.parametrize(("axis", "within"), [(0, 0.06), (2, 0.005)])
def test_creases_bend_as_the_strips_beside_them(axis, within):
    """Pull and lift a strip with folds of a right angle: tangents as they are would be off by -21 and -10 %."""
    builder, end, line = folded(4, math.pi / 2)
    builder.add_force(forces.PointForce(end.tolist(), tuple(SMALL / len(end) * np.eye(3)[axis])))
    model = builder.finalize(compile=False)
    state, _ = Static(force_tolerance=1e-14, relative_tolerance=1e-9).step(model, model.initial_state(), throw=True)
    found = float((state.positions - model.nodes)[0, end, axis].mean()) / SMALL
    bending = YOUNGS * LEG / 2 * THICK**3 / 12
    place, weight = np.polynomial.legendre.leggauss(2)
    theory = 0.0
    for start, stop in zip(line[:-1], line[1:], strict=True):
        for x, w in zip(place, weight, strict=True):
            arm = line[-1] - start - 0.5 * (x + 1) * (stop - start)
            theory += 0.5 * w * np.linalg.norm(stop - start) * np.cross(arm, np.eye(3)[axis])[1] ** 2 / bending
    assert abs(found / theory - 1) < within  # .3 % is what a flat strip of these squares is off


def corners_of(builder) -> Corners | None:
    """Return what the laws of a robot's springs see at its corners."""
    return builder.finalize(compile=False).term("bend_twist").corners


def test_who_has_corners():
    """Leave straight rods, rods that are straight at rest, and the papers' springs as they are."""
    assert corners_of(bracket(3, 1.0)[0]) is not None
    assert corners_of(bracket(3, 0.0)[0]) is None
    assert corners_of(bracket(3, 1.0, curvature="averaged")[0]) is None
    builder = RobotBuilder()
    points = np.array([[0, 0, 0], [0.1, 0, 0], [0.1, 0.1, 0], [0.2, 0.1, 0]])
    builder.add_rod(points, Circle(RADIUS), FACE, natural="straight")
    assert corners_of(builder) is None


@pytest.mark.parametrize("direction", [(0.3, 0, 0), (0.3, 0.2, 0.1)])
def test_straight_rods_have_none_in_single_precision(direction):
    """Leave them out of models in both precisions, so that one takes the other's numbers; rounding is no corner."""
    models = {}
    for dtype in (torch.float64, torch.float32):
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 0), direction, 101), Circle(RADIUS), FACE)
        builder.clamp(nodes=[0], direction="rest")
        models[dtype] = builder.finalize(dtype=dtype)
        assert models[dtype].term("bend_twist").corners is None
    for dtype, other in ((torch.float64, torch.float32), (torch.float32, torch.float64)):
        models[dtype].load_state_dict(models[other].state_dict())


def test_matrices_are_found_for_springs_at_corners_alone(monkeypatch):
    """Look at the spring of a corner, and at that of a tangent that is held, not at those along legs."""
    counts, of_halves = [], corners._of_halves
    monkeypatch.setattr(corners, "_of_halves", lambda axes, *given: counts.append(len(axes)) or of_halves(axes, *given))
    for corner in (0.0, 1.0):
        bracket(6, corner)[0].finalize(compile=False)
    assert counts == [1, 2]


def test_corners_in_single_precision_are_those_of_double():
    """Find the same matrices, rounded."""
    of_double, of_single = (bracket(4, 1.0)[0].finalize(dtype=dtype) for dtype in (torch.float64, torch.float32))
    expected = of_double.term("bend_twist").corners.state_dict()
    found = of_single.term("bend_twist").corners.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name].float()) for name in found)


def test_springs_with_stiffnesses_of_their_own_have_these():
    """Take what is set as it is, also at a corner."""
    builder, _ = bracket(2, 1.0)
    builder.set_spring_stiffness([[1, 2, 3]], EI1=1e-6, EI2=1e-6, GJ=1e-6)
    assert corners_of(builder) is None


class AtCorners(Energy):
    """An energy of the strains that its law sees at corners."""

    closed_form = True

    def __init__(self, law: Energy, corners: Corners):
        super().__init__()
        self.law, self.corners = law, corners

    def density(self, strain):
        """Return the law's density of P strain."""
        return self.law.density(self.corners.strains(strain))

    def derivatives(self, strain):
        """Return its derivatives by the strains."""
        slopes, curvatures = self.law.derivatives(self.corners.strains(strain))
        return self.corners.slopes(slopes), self.corners.stiffness(curvatures)


class Coupled(Energy):
    """An energy that is not linear, with second derivatives by all pairs of strains."""

    def density(self, strain):
        """Return half the square of a sum, and a fourth power."""
        a, b, c = strain
        return 0.5 * (a + 2 * b - c) ** 2 + (a * b) ** 2 + c**4


STIFFNESS = {
    name: torch.tensor([[k], [2 * k]], dtype=torch.float64) for name, k in (("a", 1.0), ("b", 2.0), ("c", 3.0))
}


@pytest.mark.parametrize("law", [LinearElastic(STIFFNESS), Coupled()])
def test_derivatives_and_robots_of_a_batch(law):
    """Have the derivatives of the density of P strain, with a P for each robot."""
    generator = torch.Generator().manual_seed(0)
    off = torch.rand(2, 6, 3, 3, generator=generator, dtype=torch.float64)
    off[..., 0, 2] = 0.0  # which is left out
    corners = Corners(torch.eye(3, dtype=torch.float64) + 0.3 * off)
    assert corners.per_robot == tuple(f"corner{k}" for k in (11, 12, 21, 22, 23, 31, 32, 33))
    assert testing.check_energy(AtCorners(law, corners), strains=3, robots=2).ok


OWN = {
    "first": YOUNGS * math.pi * RADIUS**4 / 4,
    "second": YOUNGS * math.pi * RADIUS**4 / 4,
    "twist": YOUNGS / (2 * (1 + POISSON)) * math.pi * RADIUS**4 / 2,
}
HALF = {name: 0.5 * value for name, value in OWN.items()}
EA = YOUNGS * math.pi * RADIUS**2
RELAXING = 0.05  # s


class Written(Energy):
    """A linear law as a user may write it: its force and matrix are compared with differences when a model is built."""

    def __init__(self, stiffness: dict[str, float]):
        super().__init__()
        self.stiffness = tuple(stiffness.values())

    def density(self, strain):
        """Return sum_i k_i strain_i^2 / 2."""
        return sum(0.5 * k * s * s for k, s in zip(self.stiffness, strain, strict=True))


class WrittenMaxwell(Maxwell):
    """A law that counts as a user's, so that it is compared with differences, too."""


def dissipate(builder, kind):
    """Let all strains of rods dissipate as a relaxation time of their material does."""
    builder.add_dissipation("stretch", LinearElastic({"axial": RELAXING * EA}))
    builder.add_dissipation("bend_twist", kind({f"viscous_{name}": RELAXING * k for name, k in OWN.items()}))


# the stiffness of the material's own energy as a part of all, the relaxation time that it lacks, what gives the rest
LAWS = {
    "replaced": (1.0, 0.0, lambda b: b.replace_energy("bend_twist", LinearElastic(OWN))),
    "added": (0.5, 0.0, lambda b: b.add_energy("bend_twist", LinearElastic(HALF))),
    "written": (0.5, 0.0, lambda b: b.add_energy("bend_twist", Written(HALF))),
    "remembered": (0.5, 0.0, lambda b: b.add_inelastic("bend_twist", WrittenMaxwell(HALF, 1e12))),  # s: a spring
    "yielding": (0.5, 0.0, lambda b: b.add_inelastic("bend_twist", Plastic(HALF, 1e9))),  # 1/m: a spring
    "dissipating": (1.0, RELAXING, lambda b: dissipate(b, LinearElastic)),
    "dissipating as written": (1.0, RELAXING, lambda b: dissipate(b, Written)),
}


def cornered(shape: str, planar: bool, relaxation_time: float, stiffness: float = 1.0):
    """Return the builder of a clamped robot with corners: a "bracket", or a "comb", a rod with stubs at some nodes.

    Parameters
    ----------
    relaxation_time : of its material [s].
    stiffness : of its material in bending and twisting, as a part of all.
    """
    line = np.linspace(0, LEG, 6)[:, None] * [1.0, 0, 0]
    if shape == "bracket":
        leg = line[-1] + np.linspace(0, LEG, 6)[1:, None] * [-0.5, 0, 0.5 * 3**0.5]
        points, edges = np.concatenate([line, leg]), [(k, k + 1) for k in range(10)]
    else:
        points = np.concatenate([line, line[[1, 3]] + [0, 0, 0.01]])
        edges = [*((k, k + 1) for k in range(5)), (1, 6), (3, 7)]
    builder = RobotBuilder(planar=planar)
    material = Material(stiffness * YOUNGS, 1100.0, POISSON, relaxation_time=relaxation_time)
    builder.add_rods(points, edges, Circle(RADIUS), material, stiffness={"EA": EA})
    builder.clamp(nodes=[0], direction="rest")
    return builder


@functools.cache
def kicked(shape: str, planar: bool, relaxation_time: float, stiffness: float = 1.0, add=None):
    """Return the positions of a robot after steps under a load, and its energy of bending and twisting.

    `add` gives the builder what the material leaves to others; see `cornered` for the rest.
    """
    builder = cornered(shape, planar, relaxation_time, stiffness)
    end = 10 if shape == "bracket" else 5
    builder.add_force(forces.PointForce([end], (1e-4, 0.0 if planar else 1e-3, 3e-3)))
    if add is not None:
        add(builder)
    model = builder.finalize()
    state, stepper = model.initial_state(), ImplicitEuler(dt=5e-3, force_tolerance=1e-14, relative_tolerance=1e-10)
    for _ in range(6):
        state, _ = stepper.step(model, state, throw=True)
    stored = {name: float(part) for name, part in model.energies(state).items() if name not in ("kinetic", "stretch")}
    return state.positions, sum(stored.values())


@pytest.mark.parametrize(("shape", "planar"), [("bracket", False), ("bracket", True), ("comb", False)])
@pytest.mark.parametrize("kind", LAWS)
def test_laws_of_ones_own_bend_corners_as_the_rods_own(kind, shape, planar):
    """Move as one linear material does whose stiffness, or dissipation, is given by the user in whole or in half."""
    stiffness, relaxation_time, add = LAWS[kind]
    expected, energy = kicked(shape, planar, relaxation_time)
    found, own_energy = kicked(shape, planar, 0.0, stiffness, add)
    # solved to 1e-10 of the forces; without P they are off by 1e-4 m and more
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert own_energy == pytest.approx(energy, rel=1e-6)


@pytest.mark.parametrize("shape", ["bracket", "comb"])
def test_corners_dissipate_as_they_are_stiff(shape):
    """Damp each mode by its stiffness times the relaxation time, also where it bends corners."""
    model = cornered(shape, False, RELAXING).finalize(compile=False)
    found = modes(model, model.initial_state(), 6)
    # to rounding, which is 2e-11 of the softest mode
    torch.testing.assert_close(found.damping, RELAXING * found.eigenvalue, rtol=1e-9, atol=0)


def test_each_robot_has_corners_of_its_own():
    """Bend a batch whose robots differ in their material at the corner as each of them alone."""
    many = torch.tensor([[1e7], [3e7]], dtype=torch.float64)
    found = []
    for youngs in (many, many[:1], many[1:]):
        builder = RobotBuilder()
        points = np.array([[0, 0, 0], [0.02, 0, 0], [0.04, 0, 0], [0.04, 0.02, 0], [0.04, 0.04, 0]])
        first = builder.add_rod(points[:3], Circle(RADIUS), Material(youngs, 1100.0, POISSON))
        builder.add_rod(points[2:], Circle(RADIUS), FACE)
        builder.clamp(nodes=[first[0]], direction="rest")
        builder.add_force(forces.PointForce([4], (1e-5, 0, 1e-5)))
        model = builder.finalize(compile=False)
        state, _ = Static().step(model, model.initial_state(batch=len(youngs)), throw=True)
        found.append(state.positions)
    torch.testing.assert_close(found[0], torch.cat(found[1:]), rtol=0, atol=1e-13)
