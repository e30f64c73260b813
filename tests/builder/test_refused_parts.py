"""What a builder is given by mistake, refused in the call that gives it."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, arc, forces, straight
from torchdismech.contact import Obstacle, Penalty, SelfContact, Sphere
from torchdismech.elastic import Dahl, ElasticTerm, Energy, Inelastic, LinearElastic, Sum

SECTION, MATERIAL = Circle(2e-3), Material(1e6, 1000.0)


def rod():
    """Return a builder with a rod of four edges."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 5), SECTION, MATERIAL)
    return builder


@pytest.mark.parametrize("distance", [-1e-9, math.nan, math.inf, "1e-9", None, np.zeros(2)])
def test_a_join_distance_that_is_none(distance):
    """It was taken: below zero and NaN, so that nothing was joined, infinity, so that all was one node."""
    with pytest.raises(InputError, match=r"join_distance: expected a length from 0 up \[m\], got"):
        RobotBuilder(join_distance=distance)


def test_join_distances():
    """Take zero, and numbers of NumPy."""
    for distance in (0, 0.0, np.float32(1e-6)):
        assert RobotBuilder(join_distance=distance).join_distance == distance


CIRCLE = arc((0, 0, 0), (0.1, 0, 0), (0, 0, 1), 2 * math.pi, 21)
TWO_TRIANGLES = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]])


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda builder: builder.add_rod(CIRCLE, SECTION, MATERIAL), "rod: nodes 0 and 20 are in one place"),
        (lambda builder: builder.add_nodes([[0, 0, 1], [0, 0, 0], [0, 0, 1]]), "nodes: nodes 0 and 2 are in one place"),
    ],
)
def test_two_nodes_of_a_call_in_one_place(add, message):
    """They were two nodes, although those of different calls are one there: the circle was open."""
    with pytest.raises(InputError, match=message + ".*nodes of one call are not joined; give the node once"):
        add(RobotBuilder())


def test_rods_have_edges():
    """Refuse a rod of one node, and a network without edges."""
    for nodes, edges in (([[0, 0, 0]], None), (straight((0, 0, 0), (1, 0, 0), 3), np.zeros((0, 2), dtype=int))):
        builder = RobotBuilder()
        with pytest.raises(InputError, match="rod: expected an edge or more, so two nodes or more"):
            if edges is None:
                builder.add_rod(nodes, Circle(1e-3), Material(1e6, 1000.0))
            else:
                builder.add_rods(nodes, edges, Circle(1e-3), Material(1e6, 1000.0))


def test_shells_may_be_slit():
    """Warn of two nodes in one place, and keep them apart: the triangles do not hold together."""
    builder = RobotBuilder()
    with pytest.warns(UserWarning, match="shell: nodes [12] and [34] are in one place.*if the shell is slit there"):
        builder.add_shell(TWO_TRIANGLES, [[0, 1, 2], [3, 5, 4]], 1e-3, MATERIAL)
    assert len(builder.nodes) == 6


def test_rings_are_closed_by_their_edges():
    """Build a circle of 20 edges by its indices, or by a node that was there before, and nodes close to each other."""
    ring = RobotBuilder()
    edges = [[k, (k + 1) % 20] for k in range(20)]
    ring.add_rods(CIRCLE[:20], edges, SECTION, MATERIAL)
    joined = RobotBuilder()
    joined.add_nodes(CIRCLE[:1])
    joined.add_rod(CIRCLE, SECTION, MATERIAL)
    for builder in (ring, joined):
        body = builder.finalize(compile=False).body
        assert body.n_nodes == body.n_edges == 20 and body.rods[0].closed
    fine = RobotBuilder(join_distance=1e-2)
    assert len(fine.add_rod(straight((0, 0, 0), (1e-3, 0, 0), 5), SECTION, MATERIAL)) == len(fine.nodes) == 5


def a_function(state, control):
    """Return no force."""
    return torch.zeros_like(state.q)


FORCE = r"add_force: expected a force, such as forces.Gravity\(\(0, 0, -9.81\)\), got "
CONTACT = (
    r"add_contact: expected an obstacle, contact.Obstacle\(shape, response\), or contact.SelfContact\(response\), got "
)
POINTS = straight((0, 0, 1), (0.3, 0, 1), 5)
OTHER_KINDS = {
    "a shape": (lambda builder: builder.add_contact(Sphere((0, 0, 0), 0.1)), CONTACT + "Sphere$"),
    "a function": (lambda builder: builder.add_force(a_function), FORCE + "function$"),
    "a class": (lambda builder: builder.add_force(forces.Gravity), FORCE + "the class Gravity itself$"),
    "a vector": (lambda builder: builder.add_force((0, 0, -9.81)), FORCE + "tuple$"),
    "a term's name": (
        lambda builder: builder.add_term("stretch"),
        "add_term: expected an elastic.ElasticTerm, got str",
    ),
    "a network": (lambda builder: builder.add_energy("stretch", nn.Linear(1, 1)), r"add_energy: .*Energy.* got Linear"),
    "a network in place": (
        lambda builder: builder.replace_energy("stretch", nn.Linear(1, 1)),
        "replace_energy: .*Linear",
    ),
    "no power": (lambda builder: builder.add_dissipation("stretch", 0.1), "add_dissipation: .*Energy.* got float"),
    "swapped": (
        lambda builder: builder.add_rod(POINTS, MATERIAL, SECTION),
        "section: expected a Circle or a Rectangle, got Material",
    ),
    "a radius": (
        lambda builder: builder.add_rod(POINTS, 5e-3, MATERIAL),
        "section: expected a Circle or a Rectangle, got float",
    ),
    "a modulus": (lambda builder: builder.add_rod(POINTS, SECTION, 1e6), "material: expected a Material, got float"),
    "a shell's modulus": (
        lambda builder: builder.add_shell(TWO_TRIANGLES[:3], [[0, 1, 2]], 1e-3, 1e6),
        "material: expected a Material, got float",
    ),
    "a number for a name": (lambda builder: builder.add_rod(POINTS, SECTION, MATERIAL, name=5), "name: .* got 5"),
    "one corner": (
        lambda builder: builder.clamp(box=([0, 0, 0],)),
        r"clamp.box: expected its two corners .*got \(\[0,",
    ),
    "text for a box": (lambda builder: builder.clamp(box="all"), "clamp.box: expected its two corners .*got 'all'"),
    "a number for axes": (lambda builder: builder.clamp([0], axes=5), "clamp.axes: expected a subset of 'xyz', got 5"),
    "lists for axes": (lambda builder: builder.clamp([0], axes=[["x"]]), "clamp.axes: expected a subset of 'xyz'"),
}


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_objects_of_another_kind(name):
    """They ended in errors of Python, some of them when the robot was built."""
    call, message = OTHER_KINDS[name]
    with pytest.raises(InputError, match=message):
        call(rod())


DENSITY = LinearElastic({"EA": 1.0})
OBSTACLE = Obstacle(Sphere((0, 0, -1), 0.1), Penalty(1e3, 1e-3))
# what may be added to a finished builder with a rod, each by the call that adds it
LATER = {
    "nodes": lambda builder: builder.add_nodes([[0.0, 0.0, 0.1]]),
    "rod": lambda builder: builder.add_rod(straight((0, 0, 0), (0, 0, 0.3), 5), SECTION, MATERIAL),
    "shell": lambda builder: builder.add_shell(np.eye(3), [[0, 1, 2]], 1e-3, MATERIAL),
    "clamp": lambda builder: builder.clamp(nodes=[0], direction="rest"),
    "add_mass": lambda builder: builder.add_mass([4], 1e-3),
    "set_spring_stiffness": lambda builder: builder.set_spring_stiffness([[0, 1, 2]], EI1=1e-3),
    "add_force": lambda builder: builder.add_force(forces.Gravity((0, 0, -9.81))),
    "add_contact": lambda builder: builder.add_contact(OBSTACLE),
    "add_contact ": lambda builder: builder.add_contact(SelfContact(Penalty(1e3, 1e-3))),
    "add_term": lambda builder: builder.add_term(ElasticTerm("own", rod().finalize().terms[0].stencil, DENSITY, None)),
    "add_energy": lambda builder: builder.add_energy("stretch", DENSITY),
    "replace_energy": lambda builder: builder.replace_energy("stretch", DENSITY),
    "add_dissipation": lambda builder: builder.add_dissipation("stretch", DENSITY),
    "add_inelastic": lambda builder: builder.add_inelastic("stretch", Dahl({"EA": 1.0}, 1.0)),
}


@pytest.mark.parametrize("what", LATER)
def test_what_comes_after_the_model_is_warned_of(what):
    """The model stayed as it was, without a word. One warning is enough, until there is another model."""
    builder = rod()
    builder.finalize()
    with pytest.warns(UserWarning, match=f"^{what.strip()}: comes after finalize") as told:
        LATER[what](builder)
    assert len(told) == 1 and told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        builder.add_mass([4], 1e-3)


def test_how_to_make_another_model():
    """A builder with an energy makes one model: another one takes another builder, others the same."""
    builder = rod()
    builder.finalize()
    with pytest.warns(UserWarning, match=r"make another model by finalize\(\)"):
        builder.add_energy("stretch", LinearElastic({"EA": 1.0}))
    builder.finalize()
    with pytest.warns(UserWarning, match="make another model by another builder, as forces, energies and laws"):
        builder.add_mass([4], 1e-3)
    with pytest.raises(InputError, match="^finalize: this LinearElastic belongs to another model"):
        builder.finalize()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.complex64, "float32", float, None])
def test_dtypes_that_are_not_stepped(dtype):
    """The error came from a step, from torch, or spoke of sizes that float16 does not hold."""
    with pytest.raises(InputError, match="^dtype: expected torch.float32 or torch.float64, got"):
        rod().finalize(dtype=dtype)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", 1.5])
def test_devices_that_are_not_there(device):
    """Name the argument."""
    with pytest.raises(InputError, match=rf"^device: expected one that is there \(cpu.*\), got {device!r}"):
        rod().finalize(device=device)


@pytest.mark.parametrize("changed", [nn.Module.half, nn.Module.bfloat16])
def test_models_in_a_dtype_that_is_not_stepped(changed):
    """Refuse states of a model that was changed after it was built, also those that were made before."""
    model = rod().finalize(compile=False)
    state = model.initial_state()
    dtype = changed(model).dtype
    for call in (
        model.initial_state,
        lambda: ImplicitEuler(0.01).step(model, state),
        lambda: ImplicitEuler(0.01).step(model, state.to(dtype)),
    ):
        with pytest.raises(InputError, match=f"^Model: dtype: expected torch.float32 or torch.float64, got {dtype}"):
            call()


def test_single_precision_is_stepped():
    """Take float32, on the CPU by name."""
    model = rod().finalize(compile=False, dtype=torch.float32, device="cpu")
    assert model.dtype == torch.float32 and model.device.type == "cpu"


def test_folds_are_those_of_the_robot():
    """Begin as the other messages about the whole robot do."""
    builder = RobotBuilder()
    builder.add_rod([[0, 0, 0], [0.2, 0, 0], [0.1, 0, 0]], SECTION, MATERIAL)
    with pytest.raises(InputError, match=r"^robot: the edges \(0, 1\) and \(1, 2\) fold back"):
        builder.finalize()


@pytest.mark.parametrize(
    ("clamp", "why"),
    [
        ({"nodes": [0]}, "give both nodes of an edge, axes or a direction"),
        ({"nodes": [0, 2]}, "give both nodes of an edge, axes or a direction"),
        ({"nodes": [0, 1], "twist": False}, "twist=False no edge; give axes or a direction"),
    ],
)
def test_clamps_that_hold_nothing(clamp, why):
    """Refuse a clamp without axes that has no edge to hold, or is not to hold any."""
    builder = rod()
    builder.clamp(nodes=[4])
    builder.clamp(axes="", **clamp)
    with pytest.raises(InputError, match=f"clamp: number 1, of the nodes {clamp['nodes'][0]}.* holds nothing: .*{why}"):
        builder.finalize()


@pytest.mark.parametrize("clamp", [{"nodes": [0, 1]}, {"nodes": [0], "direction": "rest", "twist": False}])
def test_clamps_without_axes(clamp):
    """Take the twist of an edge alone, and a direction alone."""
    builder = rod()
    builder.clamp(axes="", **clamp)
    model = builder.finalize()
    assert bool(model.free[: 3 * 5].all()) and int((~model.free).sum()) > 0


def without_super(kind):
    """Return an object of a class of users whose constructor forgets that of the class that it derives from."""
    return type("Mine", (kind,), {"__init__": lambda self: vars(self).update(stiffness=1.0)})()


@pytest.mark.parametrize(
    ("name", "add"),
    [
        ("add_force", lambda builder: builder.add_force(without_super(forces.LocalForce))),
        ("add_energy", lambda builder: builder.add_energy("stretch", without_super(Energy))),
        ("replace_energy", lambda builder: builder.replace_energy("stretch", without_super(Energy))),
        ("add_dissipation", lambda builder: builder.add_dissipation("stretch", without_super(Energy))),
        ("add_inelastic", lambda builder: builder.add_inelastic("stretch", without_super(Inelastic))),
        ("add_term", lambda builder: builder.add_term(without_super(ElasticTerm))),
        ("add_contact", lambda builder: builder.add_contact(without_super(Obstacle))),
    ],
)
def test_constructors_that_forget_what_they_derive_from(name, add):
    """Say what is missing, in the call that gives it: building the model ended in an AttributeError of torch."""
    with pytest.raises(InputError, match=rf"^{name}: Mine.__init__ has to call super\(\).__init__\(\) before it does"):
        add(rod())


def of_robots(*values):
    """Return a number for each robot, (B, 1)."""
    return torch.tensor(values)[:, None]


UP, ASIDE = straight((0, 0, 0), (0, 0, 1), 3), straight((0, 0, 0), (0, 1, 0), 3)
TWO, THREE = of_robots(1e-3, 2e-3), of_robots(1e-3, 2e-3, 3e-3)
OF_TWO, OF_THREE = Circle(TWO), Material(1e6, 1e6 * THREE)
TRIANGLE = [(0, 0, 0), (0, 1, 0), (0, 0, -1)], [(0, 1, 2)]


@pytest.mark.parametrize(
    "parts",
    [
        [("add_mass", [1], TWO), ("add_mass", [2], THREE)],
        [("add_inertia", [1], TWO), ("add_inertia", [2], THREE)],
        [("add_rod", UP, OF_TWO, MATERIAL), ("add_mass", [2], THREE)],
        [("add_rod", UP, OF_TWO, MATERIAL), ("add_rod", ASIDE, SECTION, OF_THREE)],
        [("add_rod", UP, OF_TWO, MATERIAL), ("add_shell", *TRIANGLE, THREE, MATERIAL)],
    ],
)
def test_parts_of_different_numbers_of_robots(parts):
    """They ended in an error of torch about the sizes of tensors."""
    builder = rod()
    for method, *given in parts:
        getattr(builder, method)(*given)
    with pytest.raises(InputError, match=r"given for different numbers of robots: \[2, 3\]; give each for as many"):
        builder.finalize()


def test_inertia_of_robots_on_a_rod_of_one_robot():
    """It ended in an error of torch: sizes of one robot, (1, 1), and inertia along the edge of two."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 5), Circle(of_robots(2e-3)), MATERIAL)
    builder.add_inertia([1], across=1e-3, along=of_robots(1e-3, 2e-3))
    model = builder.finalize()
    assert model.batch == 2
    assert model.initial_state().batch == 2


def test_a_rod_that_is_refused_leaves_nothing():
    """Add no nodes where directors are refused: `finalize` called them nodes of no edge, after a second attempt."""
    builder = RobotBuilder()
    with pytest.raises(InputError, match=r"directors: expected one of each edge, \(3, 3\), got \(2, 3\)"):
        builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 4), SECTION, MATERIAL, directors=np.zeros((2, 3)))
    assert not len(builder.nodes)


def test_finalize_again_after_a_refusal():
    """Make the model with the energies that were added; the second call found those of the first in a `Sum`."""
    stiffness = dict.fromkeys(("EI1", "EI2", "GJ"), torch.tensor(1e-3, dtype=torch.float64))
    builder = rod()
    builder.replace_energy("bend_twist", Sum({"first": LinearElastic(stiffness), "second": LinearElastic(stiffness)}))
    builder.add_energy("bend_twist", LinearElastic(stiffness), "third")
    with pytest.raises(InputError, match="solver: expected one of"):
        builder.finalize(solver="quick")
    model = builder.finalize()
    assert {"first", "second", "third"} <= {*model.energies(model.initial_state())}
