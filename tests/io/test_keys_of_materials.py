"""Keys of scenes for damping, inelastic laws and membranes: runs are those of Python to the last bit."""

import pytest
import torch

from tests.io.robots_by_hand import EDGES, HEAD, SIMULATION, built, by_hand, same
from tests.scenes import run
from torchdismech import Control, ImplicitEuler, rollout
from torchdismech.elastic import Dahl, LinearElastic, Maxwell, MooneyRivlin, NeoHookean, Plastic


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
