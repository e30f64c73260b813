"""Keys of scenes for contact: runs are those of Python to the last bit."""

import pytest
import torch

from tests.io.robots_by_hand import EDGES, HEAD, NODES, SIMULATION, built, by_hand, same
from tests.scenes import run
from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, forces
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.contact.pairs.self_contact import CENTRE_LINES, ROUNDING
from torchdismech.io.schema import contact as schema_contact
from torchdismech.solve.complementarity import CONTACT_METHODS


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
