"""Keys of scenes that say what a call from Python says: the runs are the same to the last bit."""

import math

import pytest
import torch

from tests.scenes import run
from torchdismech import (
    BDF2,
    Circle,
    Control,
    ImplicitEuler,
    InputError,
    Material,
    Rectangle,
    RobotBuilder,
    State,
    forces,
    rollout,
)
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.contact.self_contact import CENTRE_LINES, ROUNDING
from torchdismech.elastic import Dahl, LinearElastic, Maxwell, MooneyRivlin, NeoHookean, Plastic
from torchdismech.forces import LineLoad, PointMoment
from torchdismech.io import schema_contact
from torchdismech.io.run import run_scene
from torchdismech.magnetics import Dipole, Gradient, Magnetic
from torchdismech.solve import linear
from torchdismech.solve.complementarity import CONTACT_METHODS

NODES = [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.2, 0.0, 0.0], [0.3, 0.0, 0.0], [0.4, 0.0, 0.0]]
EDGES = [[0, 1], [1, 2], [2, 3], [3, 4]]
SQUARE = [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.1, 0.0], [0.1, 0.1, 0.0]]
FACES = [[0, 1, 2], [1, 3, 2]]
HEAD = {
    "rod": f"""
[robot]
nodes = {NODES}
rod_edges = {EDGES}
[environment]
gravity = [1.0, 2.0, -9.81]
[[clamp]]
nodes = [0, 1]
[rod]
section = {{shape = "circle", radius = 5e-3}}
youngs = 1e6
density = 1000.0
""",
    "shell": f"""
[robot]
nodes = {SQUARE}
triangles = {FACES}
[environment]
gravity = [1.0, 2.0, -9.81]
[[clamp]]
nodes = [0, 1]
[shell]
thickness = 1e-3
youngs = 1e6
density = 1000.0
""",
}
SIMULATION = "[simulation]\ndt = 0.01\nduration = 0.05\n"


def built(kind, damping=0.0, shell=(), nodes=None):
    """Return the robots of the scenes above, built by hand."""
    builder = RobotBuilder()
    if kind == "rod":
        builder.add_rods(NODES if nodes is None else nodes, EDGES, Circle(5e-3), Material(1e6, 1000.0, 0.5, damping))
    else:
        builder.add_shell(SQUARE, FACES, 1e-3, Material(1e6, 1000.0, 0.5, damping), *shell)
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity([1.0, 2.0, -9.81]))
    return builder


def by_hand(builder, integrator=None, batch=None, **finalized):
    """Return the trajectory of a robot built by hand."""
    model = builder.finalize(**finalized)
    trajectory = rollout(model, model.initial_state(batch), integrator or ImplicitEuler(0.01), 5)
    assert not trajectory.failed.any()
    return trajectory


def same(found, expected, other):
    """Compare all bits of two runs, and see that the key makes a difference to another one."""
    assert torch.equal(found.positions, expected.positions) and torch.equal(found.velocities, expected.velocities)
    assert not torch.equal(found.positions, other.positions)


# ---- damping -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "keys", "shell"),
    [
        ("rod", "", ()),
        ("shell", "", ()),
        ("shell", 'bending = "midedge"\nmembrane = "continuum"\n', ("midedge", "initial", None, "continuum")),
    ],
)
def test_relaxation_time(load, kind, keys, shell):
    """Damp rods and shells as `Material.relaxation_time` does, drawn for each robot, too."""
    head = HEAD[kind] + keys
    plain = by_hand(built(kind, shell=shell))
    found = run(load(head + "relaxation_time = 0.02\n" + SIMULATION))
    same(found, by_hand(built(kind, 0.02, shell)), plain)
    drawn = f'[batch]\nsize = 2\n[batch.randomize]\n"{kind}.relaxation_time" = {{values = [0.02, 0.05]}}\n'
    found = run(load(head + "relaxation_time = 0.02\n" + SIMULATION + drawn))
    both = torch.tensor([[0.02], [0.05]], dtype=torch.float64)
    same(found, by_hand(built(kind, both, shell)), by_hand(built(kind, 0.02, shell), batch=2))


@pytest.mark.parametrize(
    ("kind", "keys", "energies"),
    [
        ("rod", "EA = 0.5", {"stretch": {"EA": 0.5}}),
        ("rod", "EI1 = 1e-4\nGJ = 2e-4", {"bend_twist": {"EI1": 1e-4, "EI2": 0.0, "GJ": 2e-4}}),
        ("shell", "membrane = 0.2\nbending = 3e-6", {"membrane": {"m": 0.2}, "hinge": {"b": 3e-6}}),
    ],
)
@pytest.mark.parametrize("damping", [0.0, 0.01])
def test_dissipation(load, kind, keys, energies, damping):
    """Add what `add_dissipation` adds, with a material that damps and without."""
    head = HEAD[kind] + ('bending = "hinge"\n' if kind == "shell" else "")
    builder, double = built(kind, damping, ("hinge",)), torch.float64
    for term, numbers in energies.items():
        builder.add_dissipation(
            term, LinearElastic({name: torch.tensor(value, dtype=double) for name, value in numbers.items()})
        )
    found = run(load(head + f"relaxation_time = {damping}\n[dissipation]\n{keys}\n" + SIMULATION))
    same(found, by_hand(builder), by_hand(built(kind, damping, ("hinge",))))


@pytest.mark.parametrize(
    ("kind", "keys", "term", "law"),
    [
        ("rod", 'law = "dahl"\nEA = 50.0\nlimit = 1e-3', "stretch", lambda: Dahl({"EA": 50.0}, 1e-3)),
        (
            "rod",
            'law = "maxwell"\nEI1 = 1e-3\nEI2 = 2e-3\nrelaxation_time = 0.02',
            "bend_twist",
            lambda: Maxwell({"EI1": 1e-3, "EI2": 2e-3, "GJ": 0.0}, 0.02),
        ),
        ("shell", 'law = "dahl"\nbending = 1e-3\nlimit = 0.01', "hinge", lambda: Dahl({"bending": 1e-3}, 0.01)),
        (
            "rod",
            'law = "plastic"\nEI1 = 1e-3\nEI2 = 2e-3\nlimit = 0.1',
            "bend_twist",
            lambda: Plastic({"EI1": 1e-3, "EI2": 2e-3, "GJ": 0.0}, 0.1, together=("EI1", "EI2")),
        ),
    ],
)
def test_inelastic(load, kind, keys, term, law):
    """Add what `add_inelastic` adds."""
    head = HEAD[kind] + ('bending = "hinge"\n' if kind == "shell" else "")
    builder = built(kind, shell=("hinge",))
    builder.add_inelastic(term, law())
    found = run(load(head + SIMULATION + f"[[inelastic]]\n{keys}\n"))
    same(found, by_hand(builder), by_hand(built(kind, shell=("hinge",))))


def test_inelastic_of_each_robot(load):
    """Draw a law's numbers, and name two laws of a kind."""
    tables = '[[inelastic]]\nlaw = "maxwell"\nEA = 50.0\nrelaxation_time = 0.02\n'
    tables += '[[inelastic]]\nlaw = "maxwell"\nname = "slow"\nEA = 50.0\nrelaxation_time = 0.2\n'
    tables += '[batch]\nsize = 2\n[batch.randomize]\n"inelastic.1.relaxation_time" = {values = [0.2, 0.4]}\n'
    model = run(load(HEAD["rod"] + SIMULATION + tables)).state
    assert model.internal.shape == (2, 2 * len(EDGES))
    assert not torch.equal(model.internal[0], model.internal[1])


# ---- solving -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "solver", ["dense", "multifrontal", {"name": "banded", "method": "lapack"}, {"name": "pcg", "tolerance": 1e-3}]
)
def test_linear_solvers(load, solver):
    """Solve by the named solver with its options."""
    inline = f'"{solver}"' if isinstance(solver, str) else _inline(solver)
    scene = load(HEAD["rod"] + SIMULATION + f"solver = {inline}\n")
    other = "bicgstab" if solver != {"name": "pcg", "tolerance": 1e-3} else "dense"  # both Krylov solvers may agree
    same(run(scene), by_hand(built("rod"), solver=solver), by_hand(built("rod"), solver=other))
    model = scene.build().model
    assert (model.solvers.name, model.solvers.options) == linear.named(solver)


def _inline(table):
    """Return a table as TOML."""
    return "{" + ", ".join(f"{k} = {v!r}" for k, v in table.items()).replace("'", '"') + "}"


@pytest.mark.parametrize(("given", "chunk"), [("2", 2), ('"auto"', "auto"), ('"all"', None)])
def test_chunk(load, given, chunk):
    """Step so many robots at a time."""
    drawn = '[batch]\nsize = 5\n[batch.randomize]\n"rod.youngs" = {values = [1e6, 2e6, 3e6, 4e6, 5e6]}\n'
    scene = load(HEAD["rod"] + SIMULATION + f"chunk = {given}\n" + drawn)
    assert scene.build().integrator.chunk == chunk
    builder = RobotBuilder()
    youngs = torch.tensor([[1e6], [2e6], [3e6], [4e6], [5e6]], dtype=torch.float64)
    builder.add_rods(NODES, EDGES, Circle(5e-3), Material(youngs, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity([1.0, 2.0, -9.81]))
    expected = by_hand(builder, ImplicitEuler(0.01, chunk=chunk))
    assert torch.equal(run(scene).positions, expected.positions)


def test_bdf2(load, tmp_path):
    """Step by BDF2; its runs are written and resumed, with what it remembers, to the last bit."""
    text = HEAD["rod"] + SIMULATION + 'integrator = "bdf2"\n'
    scene = load(text)
    assert type(scene.build().integrator) is BDF2
    same(run(scene), by_hand(built("rod"), BDF2(0.01)), by_hand(built("rod")))
    whole, path = run(scene), tmp_path / "run.h5"
    half = load(text, {"simulation.duration": 0.03})
    run_scene(half, half.build(), path)
    scene = load(text)
    resumed, first = run_scene(scene, scene.build(), path, resume=path)
    assert first == 3 and torch.equal(resumed.positions[-1], whole.positions[-1])
    again = load(HEAD["rod"] + SIMULATION + '[initial]\ntrajectory = "run.h5"\n').build().state
    assert type(again) is State and torch.equal(again.q, resumed.state.q)
    other = load(HEAD["rod"] + SIMULATION.replace("0.05", "0.1"))
    with pytest.raises(InputError, match="was written by another kind of integrator"):
        run_scene(other, other.build(), path, resume=path, force_resume=True)


# ---- geometry and loads ------------------------------------------------------------------------------------------


def test_directors(load):
    """Turn sections as a file says, row by row, also where tables mix."""
    rows = [[0.0, math.sin(0.3 * k), math.cos(0.3 * k)] for k in range(4)]
    section = 'section = {shape = "rectangle", width = 8e-3, height = 4e-3}\nyoungs = 1e6\ndensity = 1000.0\n'
    head = HEAD["rod"].partition("[rod]")[0]
    given = 'directors_file = "d.txt"\n'
    content = "\n".join(" ".join(map(repr, row)) for row in rows)
    found = run(load(head + "[rod]\n" + section + given + SIMULATION, d__txt=content))

    def expected(directors):
        builder = RobotBuilder()
        builder.add_rods(NODES, EDGES, Rectangle(8e-3, 4e-3), Material(1e6, 1000.0), directors=directors)
        builder.clamp(nodes=[0, 1])
        builder.add_force(forces.Gravity([1.0, 2.0, -9.81]))
        return by_hand(builder)

    same(found, expected(rows), expected(None))
    ends = "box = {min = [0, 0, 0], max = [0.1, 0, 0]}\n"
    inside = "box = {min = [0.1, 0, 0], max = [1, 0, 0]}\n"
    tables = [f"[[rod]]\n{section}{ends}", f"[[rod]]\n{section}{given}{inside}"]
    mixed = load(head + "".join(tables) + SIMULATION, d__txt=content.partition("\n")[2]).build().model
    torch.testing.assert_close(
        mixed.directors, torch.tensor([[0.0, 0.0, 1.0], *rows[1:]], dtype=torch.float64), rtol=0, atol=1e-15
    )
    with pytest.raises(InputError, match=r"d.txt: expected 3 rows, one for each rod edge of the table, got 4"):
        load(head + "".join(tables) + SIMULATION, d__txt=content).build()


@pytest.mark.parametrize(
    ("kind", "keys", "force"),
    [
        ("rod", "[[line_load]]\nedges = [1, 3]\nload = [0, 0.3, 1]", lambda: LineLoad([0, 0.3, 1], [1, 3])),
        (
            "shell",
            "[[line_load]]\nsides = [[1, 3], [3, 2]]\nload = [0, 0, 1]\nstart = 0.015\nstop = 0.035",
            lambda: LineLoad([0, 0, 1], sides=[[1, 3], [3, 2]], start=0.015, stop=0.035),
        ),
        ("rod", "[[moment]]\nnodes = [4]\nmoment = [1e-3, 2e-3, 0]", lambda: PointMoment([1e-3, 2e-3, 0], [4])),
        (
            "rod",
            '[[moment]]\nedges = [2, 3]\nmoment = [0, 2e-3, 1e-3]\nframe = "material"\nstop = 0.03',
            lambda: PointMoment([0, 2e-3, 1e-3], None, [2, 3], "material", stop=0.03),
        ),
    ],
    ids=["line load", "on sides", "moment", "following"],
)
def test_loads(load, kind, keys, force):
    """Load lines and turn edges as the forces of the library do."""
    builder = built(kind)
    builder.add_force(force())
    same(run(load(HEAD[kind] + SIMULATION + keys + "\n")), by_hand(builder), by_hand(built(kind)))


@pytest.mark.parametrize(
    ("keys", "energy"),
    [
        ('law = "neo_hookean"\nshear = 50.0', lambda: NeoHookean(50.0)),
        ('law = "mooney_rivlin"\nc1 = 40.0\nc2 = 5.0', lambda: MooneyRivlin(40.0, 5.0)),
    ],
)
def test_materials_of_membranes(load, keys, energy):
    """Stretch membranes by another law than Hooke's."""
    kinds = ("midedge", "initial", None, "continuum")
    builder = built("shell", shell=kinds)
    builder.replace_energy("membrane", energy())
    found = run(load(HEAD["shell"] + 'membrane = "continuum"\n' + SIMULATION + f"[membrane]\n{keys}\n"))
    same(found, by_hand(builder), by_hand(built("shell", shell=kinds)))


def test_growth(load):
    """Let membranes grow by a table of natural strains."""
    table = "time, a, b, c, d, e, f\n0, 0, 0, 0, 0, 0, 0\n0.05, 0.1, 0.05, 0.01, 0.1, 0, 0\n"
    keys = 'membrane = "continuum"\n' + SIMULATION + '[actuation]\nnatural_membrane_strain = "g.csv"\n'
    kinds = ("midedge", "initial", None, "continuum")
    model = built("shell", shell=kinds).finalize()
    full = torch.tensor([[[0.1, 0.05, 0.01], [0.1, 0.0, 0.0]]], dtype=torch.float64)

    def schedule(time, model):
        part = ((time - 0.0) / (time.new_tensor(0.05) - 0.0)).clamp(0, 1)[:, None, None]
        return Control(natural_membrane_strain=torch.lerp(torch.zeros_like(full), full, part))

    expected = rollout(model, model.initial_state(), ImplicitEuler(0.01), 5, schedule=schedule)
    same(run(load(HEAD["shell"] + keys, g__csv=table)), expected, by_hand(built("shell", shell=kinds)))


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        (
            "gradient = {value = [0, 0, 0.02], gradient = [[1, 0, 0], [0, 1, 0], [0, 0, -2]], center = [0.1, 0, 0]}",
            lambda: Gradient([0, 0, 0.02], [[1.0, 0, 0], [0, 1.0, 0], [0, 0, -2.0]], [0.1, 0, 0]),
        ),
        ("dipole = {moment = [0, 0, 2e3], center = [0.4, 0, -0.2]}", lambda: Dipole([0, 0, 2e3], [0.4, 0, -0.2])),
    ],
    ids=["gradient", "dipole"],
)
def test_fields_in_space(load, keys, field):
    """Pull magnetised rods by fields that differ from place to place."""
    builder = built("rod")
    builder.add_force(Magnetic(torch.tensor([1e4, 0.0, 2e3], dtype=torch.float64).expand(4, 3), field()))
    found = run(load(HEAD["rod"] + "magnetisation = [1e4, 0, 2e3]\n" + SIMULATION + f"[magnetic]\n{keys}\n"))
    same(found, by_hand(builder), by_hand(built("rod")))


# ---- contact -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", CONTACT_METHODS)
def test_method_of_complementarity(load, method):
    """Find contact loads by the named method."""
    floor = f'[floor]\nheight = -0.006\nresponse = "complementarity"\nfriction = 0.3\nmethod = "{method}"\n'
    scene = load(HEAD["rod"] + SIMULATION + floor)
    assert [o.law.response.method for o in scene.build().model.obstacles] == [method]
    builder = built("rod")
    shape = HalfSpace([0.0, 0.0, -0.006], [0.0, 0.0, 1.0])
    builder.add_contact(Obstacle(shape, Complementarity(method=method), Friction(0.3), name="floor"))
    same(run(scene), by_hand(builder, ImplicitEuler(0.01, max_substeps=16)), by_hand(built("rod")))


def test_rounding(load):
    """Round edges that are nearly parallel, as `SelfContact.rounding` does."""
    text = HEAD["rod"].replace(str(EDGES), "[[0, 1], [1, 2], [3, 4]]").replace("[0.3, 0.0, 0.0]", "[0.1, 0.0, 0.0105]")
    text = text.replace("[0.4, 0.0, 0.0]", "[0.21, 0.0, 0.0105]") + SIMULATION
    nodes = [*NODES[:3], [0.1, 0.0, 0.0105], [0.21, 0.0, 0.0105]]

    def expected(rounding):
        builder = RobotBuilder()
        builder.add_nodes(nodes)
        builder.add_rods(nodes, [[0, 1], [1, 2], [3, 4]], Circle(5e-3), Material(1e6, 1000.0))
        builder.clamp(nodes=[0, 1])
        builder.add_force(forces.Gravity([1.0, 2.0, -9.81]))
        builder.add_contact(SelfContact(Penalty(10.0, 1e-3), None, None, rounding))
        return by_hand(builder, ImplicitEuler(0.01, max_substeps=16))

    own = "[self_contact]\nstiffness = 10.0\ntolerance = 1e-3\n"
    same(run(load(text + own + "rounding = 0.3\n")), expected(0.3), expected(ROUNDING))
    assert torch.equal(run(load(text + own)).positions, expected(ROUNDING).positions)


def test_centre_line(load):
    """Let rods touch as smooth lines where they cross, as `SelfContact.centre_line` does."""
    across = [[0.105, y, 0.0095] for y in (-0.15, -0.05, 0.05, 0.15)]
    nodes = [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.2, 0.02, 0.0], *across]
    edges = [[0, 1], [1, 2], [3, 4], [4, 5], [5, 6]]
    text = HEAD["rod"].replace(str(NODES), str(nodes)).replace(str(EDGES), str(edges)) + SIMULATION

    def expected(centre_line):
        builder = RobotBuilder()
        builder.add_nodes(nodes)
        builder.add_rods(nodes, edges, Circle(5e-3), Material(1e6, 1000.0))
        builder.clamp(nodes=[0, 1])
        builder.add_force(forces.Gravity([1.0, 2.0, -9.81]))
        builder.add_contact(SelfContact(Penalty(10.0, 1e-3), centre_line=centre_line))
        return by_hand(builder, ImplicitEuler(0.01, max_substeps=16))

    own = "[self_contact]\nstiffness = 10.0\ntolerance = 1e-3\n"
    same(run(load(text + own + 'centre_line = "smooth"\n')), expected("smooth"), expected("straight"))
    assert torch.equal(run(load(text + own)).positions, expected("straight").positions)
    constraint = '[self_contact]\nresponse = "complementarity"\ncentre_line = "smooth"\n'
    with pytest.raises(
        InputError, match=r"self_contact: SelfContact.centre_line: 'smooth' goes with Penalty or Barrier"
    ):
        load(text + constraint).build()


def test_choices_are_those_of_python():
    """Offer the methods, the default of rounding and the centre lines that Python has."""
    lines = schema_contact.SelfContact.model_fields["centre_line"]
    assert lines.annotation is not None and lines.annotation.__args__ == CENTRE_LINES
    assert lines.default == SelfContact(Penalty(1.0, 1.0)).centre_line
    methods = schema_contact.Law.model_fields["method"].annotation
    assert methods is not None and set(CONTACT_METHODS) == set(methods.__args__[0].__args__)
    assert schema_contact.SelfContact.model_fields["rounding"].default == ROUNDING


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("relaxation_time = -0.1\n" + SIMULATION, "rod.relaxation_time: expected greater than or equal to 0"),
        (SIMULATION + "chunk = 0\n", 'simulation.chunk: expected a number of robots from 1 up, "all" or "auto", got 0'),
        (SIMULATION + "chunk = 2.0\n", "simulation.chunk: expected a number"),
        (SIMULATION + 'solver = {name = "pcg", tolerance = "x"}\n', "simulation.solver: pcg: tolerance is a number"),
        (SIMULATION + 'solver = {name = "pcg", tolerance = 2.0}\n', "simulation.solver: pcg: needs 0 < tolerance < 1"),
        (SIMULATION + 'solver = {name = "banded", method = "none"}\n', "simulation.solver: banded: method must be"),
        ('directors_file = "none.csv"\n' + SIMULATION, "rod.0.directors_file: no such file"),
        (SIMULATION + 'integrator = "bdf2"\nmax_substeps = 2\n', 'max_substeps does not apply to integrator = "bdf2"'),
        (
            SIMULATION + "[[line_load]]\nload = [0, 0, 1]\n",
            "line_load.0: expected exactly one of edges or sides, got n",
        ),
        (
            SIMULATION + "[[line_load]]\nedges = [4]\nload = [0, 0, 1]\n",
            "line_load.0.edges: expected edges 0 to 3, got 4",
        ),
        (
            SIMULATION + "[[line_load]]\nsides = [[0, 9]]\nload = [0, 0, 1]\n",
            "line_load.0.sides: expected nodes 0 to 4",
        ),
        (SIMULATION + "[[moment]]\nnodes = [5]\nmoment = [0, 0, 1]\n", "moment.0.nodes: expected nodes 0 to 4, got 5"),
        (SIMULATION + "[[moment]]\nnodes = [4]\nmoment = [0, 0, 1]\nframe = 'm'\n", "moment.0.frame: expected 'world'"),
        (
            SIMULATION + "[[moment]]\nnodes = [4]\nmoment = [0, 0, 1]\nstart = 2.0\nstop = 1.0\n",
            "moment.0: expected start < stop",
        ),
        (SIMULATION + '[membrane]\nlaw = "neo_hookean"\nshear = 1.0\n', "membrane: stretches shells with membrane ="),
        (SIMULATION + '[membrane]\nlaw = "neo_hookean"\nc1 = 1.0\n', "membrane: shear is missing"),
        (SIMULATION + '[membrane]\nlaw = "mooney_rivlin"\nc1 = 1.0\nc2 = -1.0\n', "membrane.c2: expected greater"),
        (SIMULATION + '[actuation]\nnatural_membrane_strain = "x.csv"\n', "natural_membrane_strain: no such file"),
        (
            "magnetisation = [1, 0, 0]\n"
            + SIMULATION
            + "[magnetic]\ndipole = {moment = [0, 0, 0], center = [0, 0, 0]}\n",
            "magnetic.dipole.moment: expected a direction that is not zero",
        ),
        (SIMULATION + "[dissipation]\n", "dissipation: expected at least one of EA, EI1"),
        (SIMULATION + "[[inelastic]]\nlaw = 'dahl'\nEA = 1.0\n", "inelastic.0: limit is missing"),
        (
            SIMULATION + "[[inelastic]]\nlaw = 'dahl'\nEA = 1.0\nlimit = 1.0\nrelaxation_time = 1.0\n",
            "inelastic.0: relaxation_time belongs to the other law",
        ),
        (SIMULATION + "[[inelastic]]\nlaw = 'dahl'\nlimit = 1.0\n", "inelastic.0: expected stiffnesses of one kind"),
        (
            SIMULATION + "[[inelastic]]\nlaw = 'dahl'\nlimit = 1.0\nEA = 1.0\nGJ = 1.0\n",
            "inelastic.0: expected stiffnesses of one kind of strain, from EA, EI1, EI2, GJ, membrane, bending; got",
        ),
        (
            SIMULATION + 2 * "[[inelastic]]\nlaw = 'dahl'\nlimit = 1.0\nEA = 1.0\n",
            "inelastic.1: add_inelastic: stretch has a law called 'dahl' already",
        ),
        (SIMULATION + "[dissipation]\nEA = -1.0\n", "dissipation.EA: expected greater than or equal to 0"),
        (SIMULATION + "[dissipation]\nbending = 1.0\n", "dissipation.bending: acts on a shell, and the robot has none"),
        (SIMULATION + "[self_contact]\nstiffness = 1.0\nrounding = 2.0\n", "self_contact.rounding: expected less than"),
        (SIMULATION + '[floor]\nstiffness = 1.0\nmethod = "gauss_seidel"\n', "floor.method: belongs to response ="),
        (
            SIMULATION + '[floor]\nresponse = "complementarity"\nmethod = "magic"\n',
            "floor.method: expected 'interior_point', 'fischer_burmeister' or 'gauss_seidel'",
        ),
        (
            SIMULATION
            + '[floor]\nheight = -1\nresponse = "complementarity"\nmethod = "gauss_seidel"\n'
            + '[self_contact]\nresponse = "complementarity"\n',
            "self_contact.method: all contacts of a robot are solved for by one method; floor has 'gauss_seidel', got",
        ),
    ],
)
def test_bad_values_are_refused_by_key(load, text, problem):
    """Name table and key of what cannot be."""
    with pytest.raises(InputError) as error:
        load(HEAD["rod"] + text).build()
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("keys", "table", "problem"),
    [
        ('membrane = "continuum"\n', "membrane = 1.0", "dissipation.membrane: is of shells that stretch as springs"),
        ('bending = "midedge"\n', "bending = 1.0", "dissipation.bending: is of hinges"),
        ("", "GJ = 1.0", "dissipation.GJ: acts on a rod, and the robot has none"),
    ],
)
def test_dissipation_of_other_shells_is_refused(load, keys, table, problem):
    """Name the key that shells of other kinds do not use."""
    with pytest.raises(InputError) as error:
        load(HEAD["shell"] + keys + SIMULATION + f"[dissipation]\n{table}\n").build()
    assert problem in str(error.value)
