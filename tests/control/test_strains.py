"""Strains in the units of the controllers: measured, set as natural ones, smoothed along rods."""

import re
import warnings

import numpy as np
import pytest
import torch

from tests.control.robots import LENGTH, folded_strip, rod, strip, wave
from torchdismech import Circle, Control, ImplicitEuler, InputError, Material, RobotBuilder, Static, meshes, straight
from torchdismech.control import Strains
from torchdismech.control.neighbours import smoothed

FIELDS = ("stretch", "curvature", "twist")


def moving(model, batch: int = 2):
    """Return a state of robots in space that are bent, stretched and twisted at random."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(batch, model.n_dofs, generator=generator, dtype=torch.float64)
    scale = torch.full((model.n_dofs,), 0.2, dtype=torch.float64)
    scale[: 3 * model.body.n_nodes] = 1e-3
    return model.initial_state(q=model.rest_state(batch).q + scale * noise)


def test_units_are_those_of_the_table():
    """Measure what the library measures, curvature and twist over the Voronoi length, on unlike edges."""
    x = LENGTH * np.array([0, 0.1, 0.3, 0.4, 0.7, 0.75, 1.0])
    model = rod(7, planar=False, held="nothing", points=np.stack([x, 0 * x, 0 * x], axis=1))
    strains, state = Strains(model, FIELDS), moving(model)
    measured, own = strains.measured(state, model), model.strains(state)
    voronoi = torch.tensor(0.5 * (np.diff(x)[1:] + np.diff(x)[:-1]))
    expected = [own["stretch"], own["kappa1"] / voronoi, own["kappa2"] / voronoi, own["tau"] / voronoi]
    torch.testing.assert_close(measured, torch.cat(expected, 1), rtol=1e-13, atol=1e-13)
    assert strains.units == {"stretch": "1", "kappa1": "1/m", "kappa2": "1/m", "twist": "rad/m"}
    assert strains.extra_repr() == "stretch: 6 [1], kappa1: 5 [1/m], kappa2: 5 [1/m], twist: 5 [rad/m]"


def test_an_arc_has_its_curvature():
    """Measure an arc of radius R: 2 tan(phi / 2) at each node over the length between, 1/R in the limit."""
    model = rod(21)
    angle = torch.linspace(0, 1, 21, dtype=torch.float64)
    arc = LENGTH * torch.stack([angle.sin(), 0 * angle, 1 - angle.cos()], dim=1)
    strains = Strains(model)
    found = strains.of_shape(model, arc)[strains.parts["kappa1"]]
    phi = 1 / 20
    torch.testing.assert_close(found, torch.full_like(found, 2 * np.tan(phi / 2) / (LENGTH / 20)), rtol=1e-10, atol=0)


def test_curvatures_do_not_know_the_clamp_rule():
    """Measure and set them per Voronoi length, however the energy is added up at a clamp."""
    states, controls = [], []
    for rule in ("trapezoidal", "gregory"):
        builder = RobotBuilder(clamp_rule=rule)
        builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), 6), Circle(1e-3), Material(1e6, 1000.0))
        builder.clamp(nodes=[0], direction="rest")
        model = builder.finalize(compile=False)
        strains, state = Strains(model, ("curvature", "twist")), moving(model)
        measured = strains.measured(state, model)
        states.append(measured)
        controls.append(strains.set_by(measured, Control(), model).natural_curvature)
    assert torch.equal(*states)
    assert torch.equal(*controls)


def spiral(nodes: int, curvature: float, torsion: float, turning: float):
    """Return nodes (N, 3) on a helix, edges of LENGTH / (N - 1), and directors (E, 3) that turn against its normals.

    Parameters
    ----------
    turning : of a director against the normal from edge to edge [rad].
    """
    chord = LENGTH / (nodes - 1)
    radius, rise = (value / (curvature**2 + torsion**2) for value in (curvature, torsion))
    low, high = 0.0, np.pi  # by bisection: the angle from node to node at which edges have their length
    for _ in range(60):
        angle = 0.5 * (low + high)
        long = np.hypot(2 * radius * np.sin(angle / 2), rise * angle) > chord
        low, high = (low, angle) if long else (angle, high)
    at = angle * np.arange(nodes)
    x = np.stack([radius * np.cos(at), radius * np.sin(at), rise * at], axis=1)
    middle, tangent = at[:-1] + angle / 2, np.diff(x, axis=0) / chord
    normal = -np.stack([np.cos(middle), np.sin(middle), 0 * middle], axis=1)
    turned = turning * np.arange(nodes - 1)[:, None]
    directors = np.cos(turned) * normal + np.sin(turned) * np.cross(tangent, normal)
    return torch.tensor(x), torch.tensor(directors)


def test_a_helix_has_its_curvatures_and_twist():
    """Measure a helix whose sections turn against its normals: curvature, torsion and turning as its formulas have it.

    In space, with a frame at each edge, nothing is in the plane in which the rod was built.
    """
    nodes, curvature, torsion, turning = 101, 40.0, 25.0, -0.05
    model = rod(nodes, planar=False, held="nothing")
    strains = Strains(model, FIELDS)
    found = strains.of_shape(model, *spiral(nodes, curvature, torsion, turning))
    length, angle = LENGTH / (nodes - 1), turning * torch.arange(nodes - 1, dtype=torch.float64)
    middle = 0.5 * (angle[1:] + angle[:-1])
    # along the binormal b, with m1 = cos(a) n + sin(a) b and m2 = cos(a) b - sin(a) n: kappa1 is m2 b, kappa2 -m1 b
    expected = {
        "stretch": torch.zeros(nodes - 1, dtype=torch.float64),
        "kappa1": curvature * torch.cos(middle),
        "kappa2": -curvature * torch.sin(middle),
        "twist": (torsion + turning / length) * torch.ones(nodes - 2, dtype=torch.float64),
    }
    # formulas are those of a smooth curve: what is left is of second order in curvature times length
    for name, part in strains.parts.items():
        assert (found[part] - expected[name]).abs().max() < 0.25 * (curvature * length) ** 2 * curvature, name


def test_sections_may_turn_many_times():
    """Turn the sections of a straight rod by 2 rad from edge to edge: the twist is 2 rad over a length everywhere."""
    model = rod(9, planar=False, held="nothing")
    strains = Strains(model, ["twist"])
    turned = 2.0 * torch.arange(8, dtype=torch.float64)
    own = model.directors[0]
    side = torch.linalg.cross(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), own)
    directors = torch.cos(turned)[:, None] * own + torch.sin(turned)[:, None] * side
    found = strains.of_shape(model, model.nodes, directors)
    torch.testing.assert_close(found, torch.full_like(found, 2.0 / (LENGTH / 8)), rtol=1e-12, atol=0)
    # half of a batch as built; length and what is along the edge do not count
    along = torch.tensor([0.3, 0.0, 0.0], dtype=torch.float64)
    both = torch.stack([2.0 * directors + along, own.expand(8, 3)])
    pair = strains.of_shape(model, model.nodes.expand(2, -1, -1), both)
    torch.testing.assert_close(pair, torch.stack([found, 0 * found]), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("natural", ["initial", "straight"])
def test_natural_strains_set_what_is_measured(natural):
    """Set natural strains on a rod built as a wave and free to take them: at rest it measures just these."""
    model = rod(9, planar=False, held="clamped", gravity=0.0, natural=natural, points=wave(9).numpy())
    strains = Strains(model, FIELDS)
    wanted = 0.02 * torch.randn(1, len(strains), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for name, part in strains.parts.items():
        wanted[:, part] *= 1.0 if name == "stretch" else 100.0
    control = strains.set_by(wanted, Control(), model)
    state, _ = Static(20, force_tolerance=1e-11).step(model, model.initial_state(), control, throw=True)
    # 1e-6: the residual of 1e-11 N over the rod's bending stiffness and length
    assert (strains.measured(state, model) - wanted).abs().max() < 1e-6 * 100
    own = strains.natural(model, 1)
    rebuilt = strains.set_by(own, Control(), model)
    for name, value in model.natural_strains(1).tensors().items():
        if name != "natural_hinge_angle":
            torch.testing.assert_close(getattr(rebuilt, name), value, rtol=1e-12, atol=1e-12)


def test_elements_that_are_not_controlled_keep_theirs():
    """Control some elements only: the others keep what the control sets, or the model's own."""
    model = rod(7)
    strains = Strains(model, ["stretch", "curvature"], {"stretch": [2, 1], "curvature": [3]})
    assert [index.tolist() for index in strains.elements.values()] == [[1, 2], [3]]
    given = Control(rest_length=torch.full((1, 6), 0.03, dtype=torch.float64))
    found = strains.set_by(torch.tensor([[0.5, 1.0, 10.0]], dtype=torch.float64), given, model)
    edge = LENGTH / 6
    torch.testing.assert_close(
        found.rest_length[0], torch.tensor([0.03, 1.5 * edge, 2 * edge, 0.03, 0.03, 0.03], dtype=torch.float64)
    )
    curvature = torch.zeros(5, dtype=torch.float64)
    curvature[3] = 10.0 * edge
    torch.testing.assert_close(found.natural_curvature[0, :, 0], curvature)
    assert (found.natural_curvature[..., 1] == 0).all() and found.natural_twist is None


@pytest.mark.parametrize("bending", ["hinge", "midedge"])
def test_hinges_are_controlled(bending):
    """Set and measure the angles of a sheet's hinges, however its triangles bend."""
    builder = RobotBuilder()
    mesh = meshes.rectangle(0.1, 0.1, 0.05)
    builder.add_shell(mesh.nodes, mesh.triangles, thickness=1e-3, material=Material(1e6, 1000.0), bending=bending)
    model = builder.finalize(compile=False)
    strains = Strains(model, ["hinge_angle"])
    control = strains.set_by(torch.full((1, len(strains)), 0.1, dtype=torch.float64), Control(), model)
    assert (control.natural_hinge_angle == 0.1).all() and strains.units == {"hinge_angle": "rad"}
    state, _ = ImplicitEuler(0.01).step(model, model.initial_state(), control, throw=True)
    expected = by_normals(state.positions, model.hinges)
    assert expected.abs().min() > 4e-4
    # the arc cosine of an angle of 4e-4 is known to 1e-16 / 4e-4
    torch.testing.assert_close(strains.measured(state, model), expected, rtol=0, atol=1e-11)
    with pytest.raises(InputError, match="stretch is of rod edges, and the robot has none"):
        Strains(model)


def by_normals(x: torch.Tensor, hinges: np.ndarray) -> torch.Tensor:
    """Return the angles (B, H) between normals, positive where these spread: each leans towards its own side."""
    start, end, first, second = (x[:, hinges[:, k]] for k in range(4))
    normal = torch.linalg.cross(end - start, first - start)
    other = torch.linalg.cross(second - start, end - start)
    size = torch.acos((normal * other).sum(-1) / (normal.norm(dim=-1) * other.norm(dim=-1)))
    return torch.where((normal * (second - start)).sum(-1) < 0, size, -size)


@pytest.mark.parametrize("natural", ["initial", "flat"])
def test_a_folded_strip_has_its_angles(natural):
    """Fold strips of both kinds of bending from .1 to .3 rad a square: sides between squares open by .2."""
    model = strip("hinge", "midedge", natural=natural, angle=0.1)
    strains = Strains(model, ["hinge_angle"])
    shape = np.concatenate([folded_strip(0.3), folded_strip(0.3) + [0.0, 0.1, 0.0]])
    across = np.abs(np.diff(model.hinges[:, :2], axis=1))[:, 0] == 9
    expected = torch.tensor(np.where(across, -0.2, 0.0))[strains.index("hinge_angle")]
    assert len(expected) == 2 * 14 and across.sum() == 2 * 7  # the diagonal of a held square cannot fold
    # rounding of places of 0.1 m over heights of triangles of 0.01 m
    torch.testing.assert_close(strains.of_shape(model, torch.tensor(shape)), expected, rtol=0, atol=1e-12)
    own = -0.5 * expected if natural == "flat" else 0 * expected  # flat is .1 back from as built
    torch.testing.assert_close(strains.natural(model, 1)[0], own, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bending", ["hinge", "midedge"])
def test_natural_angles_set_what_is_measured(bending):
    """Set the angles of a folded shape, whose squares keep their size: without a load the strip takes just it."""
    model = strip(bending, held_normals=False)  # a held normal leaves half of the fold at it
    model.forces[1].acceleration.zero_()
    strains, shape = Strains(model, ["hinge_angle"]), torch.tensor(folded_strip(0.15))
    control = strains.set_by(strains.of_shape(model, shape)[None], Control(), model)
    state, _ = Static(20, force_tolerance=1e-9).step(model, model.initial_state(), control, throw=True)
    # 1e-9 N at the end of a strip of 0.1 m with EI = 2e-4 N m^2 move it by 2e-9 m
    assert (state.positions[0] - shape).abs().max() < 1e-8


def test_natural_angles_are_those_of_the_terms():
    """Change natural angles of hinges beside triangles with mid-edge normals: the model's own have them."""
    model = strip("midedge", "hinge")
    term = model.term("hinge")
    term.natural_hinge_angle = term.natural_hinge_angle + 0.1
    found = model.natural_strains(2).natural_hinge_angle
    assert torch.equal(found[:, term.stencil.numbers], torch.full((2, 15), 0.1, dtype=torch.float64))
    others = np.setdiff1d(np.arange(30), term.stencil.numbers.numpy())
    assert (found[:, others] == 0).all()


def test_refuses_natural_curvatures_that_angles_would_replace():
    """Refuse to set angles where natural curvatures of triangles are no longer those as built."""
    model = strip("midedge")
    strains = Strains(model, ["hinge_angle"])
    model.term("midedge").natural_curvature22[3] += 0.5
    message = "natural angles of hinges: midedge.natural_curvature22 was changed, and angles would take its place"
    with pytest.raises(InputError, match=message):
        Strains(model, ["hinge_angle"])
    with pytest.raises(InputError, match=message):
        strains.refuse_another(model)


# ---- smoothing -----------------------------------------------------------------------------------------------------


def cross() -> RobotBuilder:
    """Return a builder of two rods that cross, of another that stands alone, and of a ring."""
    builder = RobotBuilder()
    round_, soft = Circle(1e-3), Material(1e6, 1000.0)
    builder.add_rod(straight((-0.1, 0, 0), (0.1, 0, 0), 9), round_, soft)
    builder.add_rod(straight((0, -0.1, 0), (0, 0.1, 0), 9), round_, soft)
    builder.add_rod(straight((0, 0, 1), (0.1, 0, 1), 5), round_, soft)
    angle = np.linspace(0, 2 * np.pi, 9)[:-1]
    ring = np.stack([np.cos(angle), np.sin(angle), 0 * angle + 2], axis=1)
    edges = np.stack([np.arange(8), np.roll(np.arange(8), -1)], axis=1)
    builder.add_rods(0.05 * ring, edges, round_, soft)
    return builder


def test_smoothing_keeps_to_a_rod():
    """Spread a unit at each element: it reaches the neighbours in its rod with (1, 2, 1) / 4, and nothing else."""
    model = cross().finalize(compile=False)
    strains = Strains(model, ["stretch", "kappa1"])
    places = strains.neighbours(model)
    spread = smoothed(torch.eye(len(strains), dtype=torch.float64), places, 1)
    assert torch.equal(spread, spread.t())
    torch.testing.assert_close(spread.sum(1), torch.ones(len(strains), dtype=torch.float64))
    rods = [set(rod.edges.tolist()) for rod in model.body.rods]
    part = strains.parts["stretch"]
    for row, column in spread[part, part].nonzero().tolist():
        assert any({row, column} <= edges for edges in rods)
        if row != column:
            assert spread[row, column] == 0.25 and set(model.rod_edges[row]) & set(model.rod_edges[column])
    part = strains.parts["kappa1"]
    springs = model.springs
    for row, column in spread[part, part].nonzero().tolist():
        if row != column:
            assert model.body.springs.carried[[row, column]].all()
            assert len(set(springs[row]) & set(springs[column])) == 2  # they share an edge
    junction = np.flatnonzero(~model.body.springs.along_rod)
    assert len(junction) and (spread[part, part].diagonal()[junction] == 1).all()
    ring = rods[[rod.closed for rod in model.body.rods].index(True)]
    assert len(ring) == 8 and (spread[strains.parts["stretch"]].diagonal()[list(ring)] == 0.5).all()
    assert (spread[:, strains.parts["kappa1"]][strains.parts["stretch"]] == 0).all()


def test_passes_add_up():
    """Smooth a wave of the shortest length away, and a constant not at all."""
    model = rod(12)
    strains = Strains(model, ["stretch"])
    places = strains.neighbours(model)
    shortest = (-1.0) ** torch.arange(11, dtype=torch.float64)[None]
    assert smoothed(shortest, places, 1)[0, 1:-1].abs().max() == 0 and torch.equal(
        smoothed(shortest, places, 0), shortest
    )
    assert torch.equal(smoothed(torch.ones(1, 11), places, 5), torch.ones(1, 11))
    twice = smoothed(smoothed(shortest, places, 1), places, 1)
    assert torch.equal(smoothed(shortest, places, 2), twice)


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "elements", "message"),
    [
        (["strech"], None, "fields: expected some of stretch, .* got 'strech'"),
        ("kappa1", None, "fields: expected a list of names, also of one alone, got 'kappa1'"),
        ([], None, r"fields: expected a list of names, also of one alone, got \[\]"),
        (["curvature", "kappa1"], None, "fields: kappa1 is there twice"),
        (["twist"], None, "twist: a planar robot does not twist"),
        (["kappa2"], None, "fields: no strain of kappa2 can change"),
        (["hinge_angle"], None, "hinge_angle is of hinges, and the robot has none"),
        (["stretch"], {"stretch": [6]}, r"stretch: rod edges: expected indices 0 to 5 .* got \[6\]"),
        (["stretch"], {"stretch": [1, 1]}, r"elements: stretch: rod edges: expected indices, each once, got \[1, 1\]"),
        (["stretch"], {"curvature": [1]}, "elements: 'curvature' is not among the fields"),
        (["kappa2"], {"kappa2": [1]}, "kappa2 of spring 1 of nodes 1, 2, 3, which is out of the robot's plane, cannot"),
    ],
)
def test_refuses_strains_that_are_none(fields, elements, message):
    """Name the field, what was expected and what came."""
    with pytest.raises(InputError, match=message):
        Strains(rod(7), fields, elements)


def test_refuses_the_stretch_of_a_clamped_pair():
    """Leave out the edge between clamped nodes unless it is asked for; then name it."""
    model = rod(7, held="clamped")
    assert Strains(model, ["stretch"]).elements["stretch"].tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(
        InputError, match="stretch of edge 0 of nodes 0, 1, which are all clamped, cannot change: leave"
    ):
        Strains(model, ["stretch"], {"stretch": [0, 1]})


def test_planar_robots_refuse_shapes_out_of_their_plane():
    """Refuse an arc along y and turned sections; take an arc in another plane of one y, but for rounding."""
    angle = torch.linspace(0, 1, 7, dtype=torch.float64)
    across, up, none = LENGTH * angle.sin(), LENGTH * (1 - angle.cos()), 0 * angle
    model = rod(7)
    strains = Strains(model)
    arc = torch.stack([across, none, up], dim=1)
    beside = arc + 0.5
    beside[:, 1] += 1e-7 * angle  # as measured ones may be
    torch.testing.assert_close(strains.of_shape(model, beside), strains.of_shape(model, arc), rtol=1e-9, atol=1e-9)
    leaving = torch.stack([arc, torch.stack([across, up, none], dim=1)])
    with pytest.raises(InputError, match="the robot is planar: .* node 6 of robot 1 is 0.046 m out of that"):
        strains.of_shape(model, leaving)
    turned = model.directors[:6] + torch.linalg.cross(model.directors[:6], torch.tensor([[1.0, 0, 0]]).double())
    with pytest.raises(InputError, match="target: directors: the robot is planar, and its sections do not turn"):
        strains.of_shape(model, model.nodes, turned)
    free = rod(7, planar=False)
    Strains(free).of_shape(free, leaving, turned)


@pytest.mark.parametrize("unit", [1000.0, 1 / 25.4])
def test_shapes_in_another_unit_are_warned_of(unit):
    """Say how many times as long as at rest a target is; one of twice the length is taken."""
    model = rod(7)
    with pytest.warns(
        UserWarning, match=rf"edges are {re.escape(f'{unit:.3g}')} times as long as at rest: are the positions in m"
    ):
        Strains(model).of_shape(model, model.nodes * unit)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Strains(model).of_shape(model, model.nodes * 2)


def test_refuses_shapes_of_other_robots():
    """Refuse a target with another number of nodes, and one that is not finite."""
    model = rod(7)
    strains = Strains(model)
    with pytest.raises(InputError, match=re.escape("target: expected positions of 7 nodes, (7, 3), got (9, 3)")):
        strains.of_shape(model, wave(9))
    with pytest.raises(InputError, match="target: positions hold numbers that are not finite"):
        strains.of_shape(model, wave(7) * torch.nan)
    shape = torch.stack([wave(7), wave(7)])
    shape[1, 3] = shape[1, 4]
    with pytest.raises(InputError, match="target: positions: nodes 3 and 4 of robot 1 are in one place"):
        strains.of_shape(model, shape)
    shape = model.nodes.clone()
    shape[4] = shape[2]
    with pytest.raises(InputError, match="target: positions: kappa1 of number 2 of the springs is not finite there"):
        strains.of_shape(model, shape)
    with pytest.raises(InputError, match=re.escape("expected directors of 6 rod edges, (6, 3), got (7, 3)")):
        strains.of_shape(model, wave(7), torch.ones(7, 3))
    along = model.directors.index_copy(0, torch.tensor([4]), torch.tensor([[0.1, 0.0, 0.0]], dtype=torch.float64))
    with pytest.raises(InputError, match="directors: that of rod edge 4 is along the edge, or zero: it has no angle"):
        strains.of_shape(model, model.nodes, along)
