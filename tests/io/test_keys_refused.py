"""Keys of scenes whose values are refused, by table and key."""

import warnings

import pytest

from tests.io.robots_by_hand import HEAD, SIMULATION
from torchdismech import InputError


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("relaxation_time = -0.1\n" + SIMULATION, "rod.relaxation_time: expected greater than or equal to 0"),
        (SIMULATION + "chunk = 0\n", "simulation.chunk: expected a number of robots from 1 up that are stepped at a"),
        (SIMULATION + "chunk = 2.0\n", "simulation.chunk: expected a number"),
        (SIMULATION + 'solver = {name = "pcg", tolerance = "x"}\n', "simulation.solver: pcg: tolerance is a number"),
        (SIMULATION + 'solver = {name = "pcg", tolerance = 2.0}\n', "simulation.solver: pcg: needs 0 < tolerance < 1"),
        (SIMULATION + 'solver = {name = "banded", method = "none"}\n', "solver: banded: method: expected one of"),
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
            'inelastic.0: relaxation_time belongs to law = "maxwell"',
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
        (
            SIMULATION + "[[spring]]\nnodes = [[1, 2, 3], [3, 2, 1]]\nstiffness = {EI1 = 1.0}\n",
            "spring.0: set_spring_stiffness: expected each spring once, got [3, 2, 1] twice with EI1",
        ),
        (
            SIMULATION
            + "[[spring]]\nnodes = [[1, 2, 3]]\nstiffness = {EI1 = 1.0, GJ = 2.0}\n"
            + "[[spring]]\nnodes = [[1, 2, 3]]\nstiffness = {EI2 = 3.0}\n"
            + "[[spring]]\nnodes = [[2, 3, 4], [3, 2, 1]]\nstiffness = {GJ = 4.0}\n",
            "spring.2: set_spring_stiffness: expected each spring once, got [3, 2, 1] twice with GJ",
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
            "Complementarity.method: one for all contacts of a robot, got gauss_seidel, interior_point",
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


@pytest.mark.parametrize(
    ("kind", "key", "problem"),
    [
        ("rod", 'joints = "pinned"', 'robot.joints: "pinned" is of nodes where rods branch or meet a shell; a robot'),
        ("shell", 'joints = "pinned"', 'robot.joints: "pinned" is of nodes where rods branch or meet a shell; a robot'),
        ("shell", 'curvature = "averaged"', 'robot.curvature: "averaged" is of rods; a robot without does not use it'),
        ("rod", 'clamp_rule = "gregory"', 'robot.clamp_rule: "gregory" is of clamps with a direction; a robot'),
    ],
)
def test_choices_about_what_a_robot_does_not_have_are_refused(load, kind, key, problem):
    """Name the key of [robot] that changes nothing."""
    with pytest.raises(InputError) as error:
        load(HEAD[kind].replace("[robot]\n", f"[robot]\n{key}\n") + SIMULATION)
    assert problem in str(error.value)


def test_smooth_centre_lines_of_no_rods_are_refused(load):
    """Name the key of contact that is about rods, where there is a shell alone."""
    contact = '[self_contact]\nstiffness = 1.0\ncentre_line = "smooth"\n'
    with pytest.raises(InputError, match='self_contact.centre_line: "smooth" is of rods; a robot without does not'):
        load(HEAD["shell"] + SIMULATION + contact)


@pytest.mark.parametrize("size", [0.0, 1e-200, 1e200])
def test_directions_without_a_length_are_refused(load, size):
    """Refuse an axis whose length is zero or infinite as a number, so that it points nowhere."""
    turn = f"[[move]]\nnodes = [0]\nrotation = {{axis = [0, 0, {size}], center = [0, 0, 0], rate = 1.0}}\n"
    with pytest.raises(InputError, match="move.0.rotation.axis: expected a direction that is not zero"):
        load(HEAD["rod"] + SIMULATION + turn)


IN_PLANE = HEAD["rod"].replace("[robot]\n", "[robot]\nplanar = true\n")


@pytest.mark.parametrize(
    ("keys", "tables", "problem"),
    [
        ("stiffness = {GJ = 1.0}\n", "", "rod.0: stiffness.GJ: the robot is planar, and its rods do not twist"),
        ("stiffness = {EI2 = 1.0}\n", "", "rod.0: stiffness.EI2: the robot is planar, and its rods bend with EI1"),
        (
            "",
            "[[spring]]\nnodes = [[1, 2, 3]]\nstiffness = {GJ = 1.0}\n",
            "spring.0: set_spring_stiffness.GJ: the robot is planar",
        ),
        ("", "[dissipation]\nEI1 = 1.0\nEI2 = 1.0\n", "dissipation: add_dissipation: EI2: the robot is planar"),
        (
            "",
            '[[inelastic]]\nlaw = "dahl"\nlimit = 1.0\nGJ = 1.0\n',
            "inelastic.0: add_inelastic: GJ: the robot is planar",
        ),
        ("", "[[line_load]]\nedges = [1]\nload = [0, 1, 0]\n", "planar: LineLoad.load is along y"),
        ("", "[[moment]]\nnodes = [4]\nmoment = [1, 0, 1]\n", "planar: PointMoment.moment has no part about y"),
        (
            "",
            '[actuation]\nnatural_curvature = "kappa.csv"\n',
            "actuation.natural_curvature: kappa.csv: kappa2 of spring 1 is out of the x-z plane",
        ),
    ],
)
def test_planar_robots_refuse_what_is_out_of_their_plane(load, keys, tables, problem):
    """Name the table of what a robot in the x-z plane does not feel."""
    with pytest.raises(InputError) as error:
        load(IN_PLANE + keys + SIMULATION + tables, kappa__csv="0, 1, 1, 1, 0, 0.2, 0\n").build()
    assert problem in str(error.value)


def test_planar_robots_take_what_is_in_their_plane(load):
    """Turn the sections, and EI2 is what bends in the plane; the stiffnesses that act stand in for Young's modulus."""
    directors = "directors_file = 'd1.csv'\nstiffness = {EI2 = 1.0}\n"
    tables = '[dissipation]\nEI2 = 1.0\n[actuation]\nnatural_curvature = "kappa.csv"\n'
    files = {"d1__csv": "0, 1, 0\n" * 4, "kappa__csv": "0, 0, 0, 0, 1, 1, 1\n"}
    load(IN_PLANE + directors + SIMULATION + tables, **files).build()
    both = IN_PLANE.replace("youngs = 1e6\n", "stiffness = {EA = 1e3, EI1 = 1e-3}\n")
    assert load(both + SIMULATION).build().model.term("bend_twist").energy.EI1 == 1e-3
    three = both.replace("EI1 = 1e-3", "EI1 = 1e-3, EI2 = 2e-3") + "directors_file = 'd1.csv'\n"
    assert load(three + SIMULATION, **files).build().model.term("bend_twist").energy.EI2 == 2e-3


def test_rods_that_go_on_from_turned_ones_take_what_bends_them(load):
    """Give a [[rod]] EI2 that bends it in the plane where it carries the directors of another table on."""
    keys = "youngs = 1e6\ndensity = 1000.0\n"
    turned, on = "nodes = [0, 1, 2]\ndirectors_file = 'd1.csv'\n", "nodes = [2, 3, 4]\nstiffness = {EI2 = 2e-3}\n"
    section = 'section = {shape = "circle", radius = 5e-3}\n'
    text = IN_PLANE[: IN_PLANE.index("[rod]")] + f"[[rod]]\n{section}{keys}{turned}[[rod]]\n{section}{keys}{on}"
    model = load(text + SIMULATION, d1__csv="0, 1, 0\n" * 2).build().model
    assert model.term("bend_twist").energy.EI2.flatten()[-1] == 2e-3
    assert abs(float(model.directors[-1, 1])) == 1, "the test is of a rod whose d1 is across the plane"


MEMBRANE = '[membrane]\nlaw = "neo_hookean"\nshear = 1.0\n'
CONTINUUM = HEAD["shell"] + 'membrane = "continuum"\n'
SOLID = CONTINUUM.replace("youngs = 1e6\n", "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            IN_PLANE + "stiffness = {EA = 1.0, EI1 = 1.0}\n",
            "rod: youngs does nothing beside all of EA, EI1 in stiffness, as the robot is planar: leave it out",
        ),
        (
            IN_PLANE.replace("youngs = 1e6\n", "stiffness = {EA = 1.0}\n"),
            "rod: youngs is missing: Young's modulus [Pa], or all of EA, EI1 in stiffness, as the robot is planar",
        ),
        (
            IN_PLANE + "directors_file = 'd1.csv'\nstiffness = {EA = 1.0, EI1 = 1.0, EI2 = 1.0}\n",
            "rod: youngs does nothing beside all of EA, EI1, EI2 in stiffness, as the robot is planar: leave it out",
        ),
        (
            CONTINUUM + "stiffness = {bending = 1.0}\n" + MEMBRANE,
            "shell: youngs does nothing beside bending in stiffness, as [membrane] is there: leave it out",
        ),
        (
            SOLID + MEMBRANE,
            "shell: youngs is missing: Young's modulus [Pa], or bending in stiffness, as [membrane] is there",
        ),
        (
            SOLID + "stiffness = {membrane = 1.0, bending = 1.0}\n" + MEMBRANE,
            "shell: stiffness.membrane: [membrane] is there in its place: leave it out",
        ),
        (
            SOLID + "relaxation_time = 0.1\nstiffness = {bending = 1.0}\n" + MEMBRANE,
            "shell: youngs is missing: Young's modulus [Pa], times which relaxation_time damps beside [membrane]",
        ),
    ],
)
def test_moduli_that_do_nothing_or_are_missing_are_refused(load, text, problem):
    """Name Young's modulus beside all stiffnesses that act, and say what is missing."""
    with pytest.raises(InputError) as error:
        load(text + SIMULATION, d1__csv="0, 1, 0\n" * 4)
    assert problem in str(error.value)


def test_youngs_acts_beside_a_membrane_where_it_damps(load):
    """Keep Young's modulus beside [membrane] and bending where it says how the membrane damps."""
    damped = CONTINUUM + "relaxation_time = 0.1\nstiffness = {bending = 1.0}\n" + MEMBRANE
    softer = damped.replace("youngs = 1e6", "youngs = 1e5")
    viscous = [
        load(text + SIMULATION).build().model.term("membrane").dissipation.stiffness for text in (damped, softer)
    ]
    # to the rounding of the product
    assert float(viscous[0].max()) == pytest.approx(10 * float(viscous[1].max()), rel=1e-12)
    without = load(SOLID + "stiffness = {bending = 2.0}\n" + MEMBRANE + SIMULATION)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said of a modulus, as there is none
        model = without.build().model
    assert model.term("midedge").energy.stiffness.max() == 2.0
