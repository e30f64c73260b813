"""Keys of scenes for directors, loads and magnetic fields: runs are those of Python to the last bit."""

import math

import pytest
import torch

from tests.io.robots_by_hand import EDGES, HEAD, NODES, SIMULATION, built, by_hand, same
from tests.scenes import run
from torchdismech import InputError, Material, Rectangle, RobotBuilder, forces
from torchdismech.forces import LineLoad, PointMoment
from torchdismech.magnetics import Dipole, Gradient, Magnetic


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


def test_directors_of_a_table_do_not_depend_on_how_its_edges_are_listed_among_others(load):
    """Let a flat rod twist as its directors turn, also where the file lists edges of another table between its own."""
    section = 'section = {shape = "rectangle", width = 8e-3, height = 2e-3}\nyoungs = 1e6\ndensity = 1000.0\n'
    flat = f'[[rod]]\n{section}directors_file = "d.txt"\nnodes = [0, 1, 2]\n'
    scene = f"{HEAD['rod'].partition('[rod]')[0]}{flat}[[rod]]\n{section}nodes = [2, 3, 4]\n{SIMULATION}"
    rows = [[0.0, math.sin(0.6 * k), math.cos(0.6 * k)] for k in range(2)]
    content = "\n".join(" ".join(map(repr, row)) for row in rows)

    def moved(order):
        return run(load(scene.replace(str(EDGES), str([EDGES[k] for k in order])), d__txt=content)).positions

    # sums over edges in another order round otherwise: steps are solved to 1e-8 of their forces
    torch.testing.assert_close(moved([0, 2, 1, 3]), moved([0, 1, 2, 3]), rtol=0, atol=1e-9)


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
