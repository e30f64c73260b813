"""Where rods meet shells."""

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from tests import shells
from torchdismech import (
    Circle,
    ImplicitEuler,
    InputError,
    Material,
    Rectangle,
    RobotBuilder,
    Static,
    forces,
    meshes,
    straight,
)

LENGTH, RADIUS, YOUNGS = 0.2, 2e-3, 1e8


def rod_on_a_held_plate(joints: str, across: bool = True):
    """Return a rod that leaves a held plate, across it at its middle or along it at a side, with a force at its end."""
    sheet = meshes.rectangle(0.04, 0.04, 0.01, "cross")
    middle = int(np.argmin(np.linalg.norm(sheet.nodes - [0.02 if across else 0.04, 0.02, 0], axis=1)))
    builder = RobotBuilder(joints=joints)
    index = builder.add_shell(sheet.nodes, sheet.triangles, 2e-3, Material(1e8, 1000.0, 0.3), "hinge")
    start = sheet.nodes[middle]
    end = start + ([0, 0, LENGTH] if across else [LENGTH, 0, 0])
    rod = builder.add_rod(straight(start, end, 21), Circle(RADIUS), Material(YOUNGS, 1000.0, 0.3))
    assert rod[0] == index[middle]
    builder.clamp(nodes=index.tolist())
    builder.add_force(forces.PointForce([rod[-1]], (0, 1e-4, 0)))
    return builder.finalize(), int(rod[-1])


@pytest.mark.parametrize("across", [True, False])
def test_stiff_joints_hold_a_rod_like_a_clamp(across):
    """Bend as a cantilever that is held at the joint, half of whose first edge bends, and the joint's edges, too."""
    model, tip = rod_on_a_held_plate("stiff", across)
    state, _ = Static(force_tolerance=1e-10).step(model, model.initial_state(), throw=True)
    deflection = (state.positions[0, tip, 1] - model.nodes[tip, 1]).item()
    held = 1e-4 * LENGTH**3 / (3 * YOUNGS * np.pi * RADIUS**4 / 4)
    # .1 % by the edges' length; the rest are six to eight sides of triangles, each as soft as the rod
    assert 1.001 < deflection / held < 1.025


def test_pinned_joints_let_a_rod_swing():
    """Have no springs, no angles at the joint, and let the rod turn about it."""
    model, tip = rod_on_a_held_plate("pinned")
    assert len(model.springs) == 19 and len(model.body.joint_edges) == 0
    stiff, _ = rod_on_a_held_plate("stiff")
    ends = []
    for robot in (model, stiff):
        state = robot.initial_state()
        for _ in range(20):
            state, _ = ImplicitEuler(0.01).step(robot, state, throw=True)
        ends.append((state.positions[0, tip, 1] - robot.nodes[tip, 1]).item())
    assert ends[0] > 5 * ends[1]


@pytest.mark.parametrize("aside", [0.0, 0.07])  # m, at the end: straight, and with a corner where the other rod crosses
def test_rods_that_cross_at_a_pinned_joint_stay_whole(aside):
    """Bend as a cantilever that no other rod crosses, and carry one along that turns freely about the joint."""
    line = np.array(straight((-LENGTH / 2, 0, 0), (LENGTH / 2, 0, 0), 21))
    line[11:, 1] = np.linspace(0, aside, 11)[1:]
    sags = []
    for crossed in (False, True):
        builder = RobotBuilder(joints="pinned")
        rod = builder.add_rod(line, Circle(RADIUS), Material(YOUNGS, 1000.0))
        if crossed:
            other = builder.add_rod(
                straight((0, -LENGTH / 2, 0), (0, LENGTH / 2, 0), 21), Circle(RADIUS), Material(YOUNGS, 1000.0)
            )
            builder.clamp(nodes=[other[0]])
            builder.clamp(nodes=other[:2], axes="")  # its twist
            builder.clamp(nodes=[other[-1]], axes="x")
        builder.clamp(nodes=[rod[0]], direction="rest")
        builder.add_force(forces.PointForce([rod[-1]], (0, 0, -1e-6)))
        model = builder.finalize()
        state, _ = Static(force_tolerance=1e-12).step(model, model.initial_state(), throw=True)
        sags.append(state.positions[0, int(rod[-1]), 2].item())
    assert sags[1] == pytest.approx(sags[0], rel=1e-5)  # a small load; the pinned rod was cut in two: no equilibrium


TURNS = np.linspace(0, 2 * np.pi, 13)
HELIX = np.stack([0.1 * np.sin(TURNS / 2), 0.1 * np.cos(TURNS / 2), 0.02 * TURNS], axis=1)
LINE, RING = np.stack([np.arange(12), np.arange(1, 13)], axis=1), np.stack([np.arange(12), np.arange(1, 13) % 12], 1)


@pytest.mark.parametrize("natural", ["initial", "straight"])
@pytest.mark.parametrize(
    ("nodes", "edges", "crossed"),
    [
        (HELIX, LINE, 6),
        (HELIX, LINE[:, ::-1], 6),
        (np.stack([np.cos(TURNS), np.sin(TURNS), 0 * TURNS], axis=1)[:-1], RING, 0),
        (HELIX[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 2]], np.where(LINE[:11] == 11, 2, LINE[:11]), 2),  # a noose
    ],
    ids=["ribbon", "backwards", "ring", "noose"],
)
def test_a_pinned_crossing_changes_nothing_of_a_rod(nodes, edges, crossed, natural):
    """Keep sections, springs, natural strains and corners of a ribbon to which another rod is tied."""
    models = []
    for tied in (False, True):
        builder = RobotBuilder(joints="pinned")
        used = nodes[: edges.max() + 1]
        builder.add_rods(used, edges, Rectangle(1e-2, 2e-3), Material(YOUNGS, 1000.0), natural)
        if tied:
            builder.add_rod([used[crossed], used[crossed] + (0.03, 0.02, 0.05)], Circle(1e-3), Material(YOUNGS, 1000.0))
        models.append(builder.finalize())
    alone, with_other = models
    assert torch.equal(with_other.body.directors[: len(edges)], alone.body.directors)
    assert np.array_equal(with_other.body.springs.nodes, alone.body.springs.nodes)
    laws = [model.term("bend_twist").state_dict() for model in models]
    assert laws[0].keys() == laws[1].keys()
    assert all(torch.allclose(laws[1][name], value, atol=1e-12) for name, value in laws[0].items())


def test_pinned_rods_of_calls_that_count_as_one_stay_whole():
    """Cut a line of two calls at a joint, unless they are `whole`; a fork of one call is no line, and is pinned."""
    section, material = Circle(RADIUS), Material(YOUNGS, 1000.0)
    springs = []
    for whole in (None, "line"):
        builder = RobotBuilder(joints="pinned")
        for start in (0, 2):
            nodes = np.array(straight((0.02 * start, 0, 0), (0.02 * start + 0.04, 0, 0), 3))
            builder.add_rods(nodes, [[0, 1], [1, 2]], section, material, whole=whole)
        builder.add_rod([(0.04, 0, 0), (0.04, 0.02, 0)], section, material)
        springs.append(builder.finalize().body.springs.nodes.tolist())
    assert springs == [[[0, 1, 2], [2, 3, 4]], [[0, 1, 2], [1, 2, 3], [2, 3, 4]]]
    fork = RobotBuilder(joints="pinned")
    fork.add_rods(
        [(0, 0, 0), (0.02, 0, 0), (0.04, 0.02, 0), (0.04, -0.02, 0)], [[0, 1], [1, 2], [1, 3]], section, material
    )
    assert not len(fork.finalize().body.springs.nodes)
    fork.set_spring_stiffness([[0, 1, 2]], EI1=1e-6)
    with pytest.raises(InputError, match=r"no spring of nodes \[0, 1, 2\]: .* where no pinned joint parts them"):
        fork.finalize()


def edged_sheet(turn: np.ndarray):
    """Return a held sheet with a ribbon along one side and a load at a corner, all turned, and the corner's number."""
    sheet = meshes.rectangle(0.08, 0.04, spacing=0.02)
    side = np.flatnonzero(sheet.nodes[:, 1] < 1e-9)
    side = side[np.argsort(sheet.nodes[side, 0])]
    builder = RobotBuilder()
    builder.add_shell(sheet.nodes @ turn.T, sheet.triangles, 1e-3, Material(1e6, 1200.0, 0.3))
    up = np.tile([0, 0, 1.0], (len(side) - 1, 1))
    ribbon = Rectangle(6e-3, 1e-3)
    builder.add_rod(sheet.nodes[side] @ turn.T, ribbon, Material(1e7, 1200.0, 0.3), directors=up @ turn.T)
    builder.clamp(nodes=np.flatnonzero(sheet.nodes[:, 0] < 1e-9).tolist())
    corner = int(np.argmax(sheet.nodes.sum(1)))
    builder.add_force(forces.PointForce([corner], tuple(turn @ [0, 0, 2e-3])))
    return builder.finalize(), corner


def test_a_ribbon_on_a_sheet_does_not_know_the_world_axes():
    """Sag alike in every direction: frames of joint edges are any, so what they join must not bend by them."""
    moved = []
    for turn in (np.zeros(3), np.array([np.pi / 2, 0, 0]), np.array([0.7, -1.1, 0.4])):
        matrix = Rotation.from_rotvec(turn).as_matrix()
        model, corner = edged_sheet(matrix)
        state, _ = Static(force_tolerance=1e-11).step(model, model.initial_state(), throw=True)
        moved.append((state.positions[0, corner] - model.nodes[corner]).numpy() @ matrix)
    assert abs(moved[0][2]) > 3e-3
    # a residual of 1e-11 N is some 1e-10 m here; by frames of world axes it was 13.5, 5.8 and 6.2 mm
    np.testing.assert_allclose(moved[1:], [moved[0]] * 2, atol=1e-9)


def test_joints_add_no_mass():
    """Weigh as much as the parts do, however many joint edges there are."""
    model, _ = rod_on_a_held_plate("stiff")
    parts = 0.04 * 0.04 * 2e-3 * 1000.0 + np.pi * RADIUS**2 * LENGTH * 1000.0
    assert model.body.node_mass().sum().item() == pytest.approx(parts, rel=1e-12)
    angles = model.body.mass[3 * model.body.n_nodes :]
    assert (angles[:20] > 0).all() and (angles[20:] == 0).all() and len(angles) == 20 + len(model.body.joint_edges)
    massless = torch.zeros(model.n_dofs, dtype=torch.bool)
    massless[3 * model.body.n_nodes + 20 :] = True
    assert torch.equal(model.unknowns.algebraic, massless & model.free)


def test_joint_edges_are_the_sides_of_the_triangles_at_the_rod():
    """Give angles to the sides of the triangles at the joint, and a spring to each pair of edges that meets there."""
    model = shells.robot("hinge_rod")
    joint = 1  # the rod begins at node 1 of the patch
    around = [t for t in model.triangles.tolist() if joint in t]
    sides = {frozenset((t[k], t[k - 1])) for t in around for k in range(3)}
    assert {frozenset(e) for e in model.body.joint_edges.tolist()} == sides
    framed = [frozenset(e) for e in model.body.framed_edges.tolist()]
    pairs = {frozenset((a, b)) for a in framed for b in framed if a != b and a & b}
    springs = {frozenset((frozenset((a, b)), frozenset((b, c)))) for a, b, c in model.springs.tolist()}
    assert springs == pairs


def test_a_rod_along_a_shell_shares_its_edge():
    """Let a rod run along sides of triangles: those sides carry the rod's own twist, and no second one."""
    sheet = meshes.rectangle(0.04, 0.02, 0.02, "right")
    builder = RobotBuilder()
    builder.add_shell(sheet.nodes, sheet.triangles, 1e-3, Material(1e6, 1000.0, 0.3), "midedge")
    row = np.flatnonzero(sheet.nodes[:, 1] < 1e-9)
    builder.add_rod(sheet.nodes[row[np.argsort(sheet.nodes[row, 0])]], Circle(1e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[int(row[0])])
    model = builder.finalize()
    rods = {frozenset(e) for e in model.rod_edges.tolist()}
    joints = {frozenset(e) for e in model.body.joint_edges.tolist()}
    assert not rods & joints and len(model.body.normal_edges) == len(model.body.surface.edges)
    state, info = ImplicitEuler(0.01).step(model, model.initial_state())
    assert bool(info.converged.all())


def test_shells_wound_against_each_other_are_joined():
    """Turn the second sheet, and say so: an edge that both walk the same way would be no hinge."""
    nodes = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0.0]])
    material = Material(1e6, 1000.0, 0.3)
    builder = RobotBuilder()
    builder.add_shell(nodes[:3], [[0, 1, 2]], 1e-3, material)
    builder.add_shell(nodes[[0, 2, 3]], [[0, 2, 1]], 2e-3, material)
    with pytest.warns(UserWarning, match="1 of 2 triangles were turned"):
        model = builder.finalize()
    assert len(model.hinges) == 1 and len(model.body.surface.edges) == 5


def test_a_shell_may_be_added_in_parts_that_touch_in_a_node():
    """Take two opposite quarters of a square, then the other two: whole it is a surface."""
    nodes = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0.5, 0.5, 0]])
    material = Material(1e6, 1000.0, 0.3)
    builder = RobotBuilder()
    index = builder.add_nodes(nodes)
    builder.add_shell(nodes, [[0, 1, 4], [2, 3, 4]], 1e-3, material)
    with pytest.raises(InputError, match="touch in a single node"):
        builder.finalize()
    builder.add_shell(nodes, [[1, 2, 4], [3, 0, 4]], 2e-3, material)
    model = builder.finalize()
    assert len(model.hinges) == 4 and index.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match="integer node indices"):
        builder.add_shell(nodes, [[0.0, 1.0, 2.5]], 1e-3, material)


def hemmed_cloth(bending: str, turn: np.ndarray):
    """Return a cloth held at two corners whose sides are rods a thousand times as stiff, turned in space."""
    sheet, size = meshes.rectangle(0.1, 0.1, 0.025), 0.1
    x, y = sheet.nodes[:, 0], sheet.nodes[:, 1]
    builder = RobotBuilder()
    membrane = "springs" if bending == "hinge" else "continuum"
    nodes, soft = sheet.nodes @ turn.T, Material(1e6, 1000.0, 0.3)
    builder.add_shell(nodes, sheet.triangles, 1e-3, soft, bending, membrane=membrane)
    for across, along in ((y == 0, x), (x == size, y), (y == size, -x), (x == 0, -y)):
        side = np.flatnonzero(across)
        builder.add_rod(nodes[side[np.argsort(along[side])]], Circle(RADIUS), Material(1e9, 1000.0))
    builder.clamp(nodes=np.flatnonzero((y == 0) & ((x == 0) | (x == size))).tolist())
    builder.add_force(forces.Gravity(turn @ [0, 0, -9.81]))
    return builder.finalize()


@pytest.mark.parametrize("bending", ["hinge", "midedge"])
def test_a_cloth_hemmed_by_stiff_rods(bending):
    """Be at rest as built, however the cloth lies in space, and fall in steps of few iterations.

    Frames of sides that meet are half a turn apart there, to the left or to the right, as rounding has it.
    """
    generator = np.random.default_rng(0)
    turns = [np.eye(3), np.eye(3)[[1, 2, 0]], np.linalg.qr(generator.normal(size=(3, 3)))[0]]
    for turn in turns:
        model = hemmed_cloth(bending, turn)
        state = model.initial_state()
        energy = sum(model.energies(state).values())
        # J: of strains of some 1e-15 in springs of some 1 J
        assert float(energy) < 1e-25
        for _ in range(3):
            state, info = ImplicitEuler(1e-2).step(model, state, throw=True)
            assert int(info.iterations) <= 5
    height = float(((state.positions[0] - model.nodes) @ torch.as_tensor(turns[-1][:, 2])).min())
    # three steps of dt fall by 6 g dt^2; a side that is held falls less, its far side more
    assert -2.0 * 6 * 9.81e-4 < height < -0.5 * 6 * 9.81e-4
