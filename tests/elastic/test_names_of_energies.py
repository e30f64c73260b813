"""Energies that are added to a robot: what they are called, and that none takes the place of another."""

import numpy as np
import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, Control, InputError, Material, RobotBuilder, magnetics, straight
from torchdismech.contact import HalfSpace, Obstacle, Penalty
from torchdismech.elastic import ElasticTerm, LinearElastic, StretchStencil, Sum

ROD = (straight((0, 0, 0), (0.1, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0))

FLOOR = HalfSpace((0, 0, -1), (0, 0, 1))


def springs(size, name="EA"):
    """Return an energy of stretch."""
    return LinearElastic({name: size})


def bends(size):
    """Return an energy of bending and twisting."""
    return LinearElastic({"A": size, "B": size, "C": size})


def elastic(model, state):
    """Return the sum of the energies, and the potential of the forces (B,)."""
    energies = model.energies(state)
    start = model.start_step(state)
    total = sum(energies.values()) - energies["kinetic"]
    return total, model.mechanics.potential(start, state.q, state.velocity, state.time)


def moved(model):
    """Return a state in which all springs are strained."""
    noise = torch.randn(1, model.n_dofs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return model.initial_state(q=model.rest_state(1).q + 1e-3 * noise)


def test_parts_without_a_name_are_told_apart():
    """Report energies of two terms under two names, a single one as "residual"; the material keeps its names."""
    builder = rod_through(*ROD, [])
    builder.add_energy("stretch", springs(2.0))
    model = builder.finalize()
    assert set(model.energies(moved(model))) == {"kinetic", "stretch", "bend", "twist", "residual"}
    assert set(model.term("stretch").energy.energies) == {"linear", "residual"}
    builder = rod_through(*ROD, [])
    builder.add_energy("stretch", springs(2.0))
    builder.add_energy("bend_twist", bends(1e-3))
    model = builder.finalize()
    state = moved(model)
    energies = model.energies(state)
    assert set(energies) == {"kinetic", "stretch", "bend", "twist", "stretch_residual", "bend_twist_residual"}
    torch.testing.assert_close(*elastic(model, state), rtol=1e-12, atol=0.0)  # sums in another order


def test_two_magnetic_loads_are_told_apart():
    """Report the energy of each."""
    loads = [magnetics.Magnetic((1e4, 0.0, 0.0), (0.0, 0.0, size)) for size in (0.1, 0.2)]
    model = rod_through(*ROD, loads).finalize()
    state = moved(model)
    assert {"magnetic", "magnetic2"} <= set(model.energies(state))
    alone = [load.potential(state, Control()) for load in model.forces]
    energies = model.energies(state)
    torch.testing.assert_close([energies["magnetic"], energies["magnetic2"]], alone, rtol=1e-12, atol=0.0)


def test_the_material_stays_beside_what_is_added():
    """Refuse the name that the term's own energy has."""
    with pytest.raises(InputError, match="add_energy: 'linear' is the name of the term's own energy"):
        RobotBuilder().add_energy("stretch", springs(2.0), part="linear")


@pytest.mark.parametrize("part", ["a.b", "", "keys"])
def test_names_that_no_module_can_have_are_refused(part):
    """Name what came."""
    with pytest.raises(InputError, match=f"add_energy: {part!r} cannot be the name of a part"):
        RobotBuilder().add_energy("stretch", springs(2.0), part=part)


@pytest.mark.parametrize("order", [("add", "replace"), ("replace", "add")])
def test_replacing_the_linear_energy_leaves_what_is_added(order):
    """Sum the same energies in either order of the calls."""
    builder = rod_through(*ROD, [])
    for call in order:
        if call == "add":
            builder.add_energy("stretch", springs(2.0))
        else:
            builder.replace_energy("stretch", springs(3.0))
    energy = builder.finalize().term("stretch").energy
    strain = torch.ones(1, 1, dtype=torch.float64)
    assert float(energy.density((strain,))) == 0.5 * (2 + 3)


def test_an_energy_is_replaced_once():
    """Refuse a second replacement, which would drop the first."""
    builder = rod_through(*ROD, [])
    builder.replace_energy("stretch", springs(3.0))
    with pytest.raises(InputError, match="replace_energy: the energy of stretch is replaced already"):
        builder.replace_energy("stretch", springs(2.0))


def own_term(builder, name):
    """Add a term of one's own."""
    stencil = StretchStencil(np.array([[0, 2]]), torch.tensor([0.05], dtype=torch.float64))
    measure = torch.ones(1, dtype=torch.float64)
    builder.add_term(ElasticTerm(name, stencil, springs(2.0), measure))


def twice(builder, part):
    """Add energies of two terms under one name."""
    builder.add_energy("stretch", springs(2.0), part)
    builder.add_energy("bend_twist", bends(1e-3), part)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bend", lambda builder: builder.add_contact(Obstacle(FLOOR, Penalty(1e3, 1e-3), name="bend"))),
        ("kinetic", lambda builder: own_term(builder, "kinetic")),
        ("bend", lambda builder: builder.add_energy("stretch", springs(2.0), part="bend")),
        ("extra", lambda builder: twice(builder, "extra")),
    ],
    ids=["obstacle", "term", "part", "parts"],
)
def test_names_that_two_energies_would_have_are_refused(name, change):
    """Say which name, when the robot is built."""
    builder = rod_through(*ROD, [])
    change(builder)
    with pytest.raises(InputError, match=f"two energies of this robot are called {name!r}"):
        builder.finalize()


def test_a_sum_refuses_parts_of_one_name():
    """Name the part that another one of the sum would hide."""
    linear = LinearElastic({"A": 1.0, "B": 1.0, "C": 1.0}, {"bend": (0, 1), "twist": (2,)})
    builder = rod_through(*ROD, [])
    builder.replace_energy("bend_twist", Sum({"first": linear, "bend": bends(1.0)}))
    with pytest.raises(InputError, match="two parts of a sum are called 'bend'"):
        builder.finalize()
