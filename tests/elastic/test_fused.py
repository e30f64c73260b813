"""Elastic terms by compiled code that is made of their Python: what torch finds, and only where it holds."""

import copy
import pickle

import pytest
import torch

from tests.rods import rod_through
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    Rectangle,
    RobotBuilder,
    forces,
    meshes,
    straight,
)
from torchdismech.elastic import LinearElastic, assembly, fused
from torchdismech.elastic.fused import FusedTerm
from torchdismech.elastic.membrane import NeoHookean
from torchdismech.fused import function as functions
from torchdismech.magnetics import Magnetic
from torchdismech.native import Unavailable

BATCH = 5


def per_robot(low, high):
    """Return one number of each robot, (B, 1)."""
    return torch.linspace(low, high, BATCH, dtype=torch.float64)[:, None]


def network(**options):
    """Return two rods that meet, damped, unlike in each robot."""
    builder = RobotBuilder(**options)
    material = Material(per_robot(1e6, 2e6), 1000.0, 0.4, relaxation_time=1e-2)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0.05), 6), Rectangle(2e-3, 4e-3), material, natural="straight")
    builder.add_rod(straight((0.08, 0, 0.02), (0.08, 0.1, 0.02), 4), Circle(per_robot(2e-3, 3e-3)), material)
    return builder


def planar():
    """Return a rod in the plane, most of whose pairs of dofs are held."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0.05), 6), Circle(per_robot(2e-3, 3e-3)), Material(1e6, 1000.0, 0.4))
    return builder


def magnet():
    """Return a rod in a uniform field."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0.05), 6), Circle(2e-3), Material(1e6, 1000.0, 0.4))
    builder.add_force(Magnetic((1e3, 0.0, 50.0), torch.tensor([0.01, 0.02, 0.03])))
    return builder


def shell(bending="hinge", membrane="springs", energy=None):
    """Return a plate."""
    builder = RobotBuilder()
    sheet = meshes.rectangle(0.06, 0.04, 0.02)
    builder.add_shell(
        sheet.nodes, sheet.triangles, 2e-3, Material(per_robot(1e6, 2e6), 1000.0, 0.3), bending, membrane=membrane
    )
    if energy is not None:
        builder.replace_energy("membrane", energy)
    return builder


ROBOTS = {
    "network": network,
    "averaged": lambda: network(curvature="averaged"),
    "planar": planar,
    "magnet": magnet,
    "hinges": shell,
    "mid-edges": lambda: shell("midedge"),
    "continuum": lambda: shell("midedge", "continuum"),
    "neo-hookean": lambda: shell("hinge", "continuum", NeoHookean(1e3)),
}


def deformed(model, batch=BATCH):
    """Return a state away from rest."""
    state = model.initial_state(batch)
    noise = torch.randn(state.q.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return state.replace(q=state.q + 1e-3 * noise.to(state.q.dtype))


def evaluated(model, state=None, control=None, by_torch=False, monkeypatch=None):
    """Return force and matrix of the springs in a step that starts at rest."""
    state = deformed(model) if state is None else state
    elastic, start = model.mechanics.layout.elastic, model.initial_state(state.batch)
    given = model.mechanics.start(start, control or Control(), 1e-2, None)
    q = assembly.dofs_of(state.q)
    if not by_torch:
        return (*elastic.force_and_stiffness(q, given.constants), elastic.force(q, given.constants))
    with monkeypatch.context() as patch:
        patch.setattr(assembly, "program_accepts", lambda q: False)
        return (*elastic.force_and_stiffness(q, given.constants), elastic.force(q, given.constants))


def assert_same(found, expected):
    """Compare to rounding: some hundred operations on numbers of unlike size."""
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-13 * float(b.abs().max()))


@pytest.fixture
def written(monkeypatch):
    """Return what compiled code said of each term: whether it wrote it."""
    said, program = [], FusedTerm.program

    def told(self, term, *given):
        found = program(self, term, *given)
        said.append((term.name, found is not None))
        return found

    monkeypatch.setattr(FusedTerm, "program", told)
    return said


@pytest.mark.parametrize("name", ROBOTS)
def test_springs_are_as_torch_finds_them(name, monkeypatch, written):
    """Write force and matrix of all terms of every kind of robot."""
    model = ROBOTS[name]().finalize(compile=False)
    assert_same(evaluated(model), evaluated(model, by_torch=True, monkeypatch=monkeypatch))
    assert written and all(done for _, done in written)


@pytest.mark.parametrize("name", ROBOTS)
def test_strains_are_as_torch_finds_them(name, written):
    """Write the strains of all terms of every kind of robot; where they are differentiated, torch finds them."""
    model = ROBOTS[name]().finalize(compile=False)
    state = deformed(model)
    found = model.strains(state)
    assert written and all(done for _, done in written)
    written.clear()
    expected = model.strains(state.replace(q=state.q.requires_grad_()))
    assert not written
    for strain, values in expected.items():
        # strains of order 0.1 from lengths of 0.02 to 0.1 m, of which rounding leaves 1e-16 each
        torch.testing.assert_close(found[strain], values, rtol=0, atol=1e-12)
        assert values.requires_grad


@pytest.mark.parametrize("name", ROBOTS)
def test_energies_are_as_torch_finds_them(name, monkeypatch):
    """Write the energy of each part of all terms; where they are differentiated, torch finds them."""
    model, told, parts = ROBOTS[name]().finalize(compile=False), [], FusedTerm.parts
    monkeypatch.setattr(FusedTerm, "parts", lambda self, *given: told.append(parts(self, *given)) or told[-1])
    state = deformed(model)
    found = model.energies(state)
    assert told and None not in told
    told.clear()
    expected = model.energies(state.replace(q=state.q.requires_grad_()))
    assert not told and list(found) == list(expected)
    for part, energy in expected.items():
        # squares of strains that agree to 1e-12 of 0.1, summed
        torch.testing.assert_close(found[part], energy.detach(), rtol=1e-10, atol=1e-18)
        assert energy.requires_grad or part == "kinetic"


def test_single_precision(monkeypatch, written):
    """Write numbers of the model's own precision."""
    model = network().finalize(compile=False, dtype=torch.float32)
    for a, b in zip(evaluated(model), evaluated(model, by_torch=True, monkeypatch=monkeypatch), strict=True):
        # 6e-8 of each of some tens of products and sums: 1e-6 of the largest seen
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * float(b.abs().max()))
    assert all(done for _, done in written)


def test_controls_and_changed_constants_count(monkeypatch, written):
    """Read what a control sets, and constants as they are: changed in place, given per robot, or of another energy."""
    model = planar().finalize(compile=False)
    bend = model.elastic_terms[1] if hasattr(model, "elastic_terms") else model.mechanics.terms[1]
    evaluated(model)
    control = Control(rest_length=torch.full((BATCH, 5), 0.05, dtype=torch.float64))
    assert_same(evaluated(model, control=control), evaluated(model, None, control, True, monkeypatch))
    name = bend.energy.names[0]
    with torch.no_grad():
        getattr(bend.energy, name).mul_(3.0)
    assert_same(evaluated(model), evaluated(model, by_torch=True, monkeypatch=monkeypatch))
    setattr(bend.energy, name, torch.nn.Parameter(per_robot(1.0, 2.0), requires_grad=False))
    assert_same(evaluated(model), evaluated(model, by_torch=True, monkeypatch=monkeypatch))
    bend.energy = LinearElastic({k: torch.tensor(0.5) * (1 + i) for i, k in enumerate(bend.energy.names)}).double()
    assert_same(evaluated(model), evaluated(model, by_torch=True, monkeypatch=monkeypatch))
    assert all(done for _, done in written)


class Doubled(LinearElastic):
    """A user's energy with a number that is no tensor."""

    factor = 2.0

    def density(self, strain):
        """Return the factor times the linear one."""
        return self.factor * super().density(strain)

    def derivatives(self, strain):
        """Return the factor times the linear ones."""
        first, second = super().derivatives(strain)
        return [self.factor * x for x in first], [[None if x is None else self.factor * x for x in r] for r in second]


def test_what_users_write_is_evaluated_by_torch(written):
    """Follow a number that changes in a user's energy."""
    builder = planar()
    energy = Doubled({"EA": torch.tensor(1.0, dtype=torch.float64)})
    builder.replace_energy("stretch", energy)
    model = builder.finalize(compile=False)
    before = evaluated(model)[0]
    energy.factor = 4.0
    assert float((evaluated(model)[0] - before).abs().max()) > 0
    assert {name for name, done in written if not done} == {"stretch"}


def test_gradients_are_torchs(written):
    """Let autograd follow where a constant requires gradients, and write again where none is recorded."""
    model = planar().finalize(compile=False)
    for parameter in model.parameters():
        if parameter.dtype == torch.float64 and parameter.dim():
            parameter.requires_grad_()
    force = evaluated(model)[0]
    assert force.requires_grad and not all(done for _, done in written)
    written.clear()
    with torch.no_grad():
        evaluated(model)
    assert all(done for _, done in written)


def test_forward_derivatives_and_vmap_are_torchs(written):
    """Take no tensors that stand for something else."""
    model = planar().finalize(compile=False)
    elastic, state = model.mechanics.layout.elastic, deformed(model)
    given = model.mechanics.start(model.initial_state(BATCH), Control(), 1e-2, None)
    q = assembly.dofs_of(state.q)
    direction = torch.ones_like(q)
    with torch.no_grad():
        plus, minus = (elastic.force(q + s * 1e-6 * direction, given.constants) for s in (1, -1))
        written.clear()
        _, slope = torch.func.jvp(lambda x: -elastic._gradients(x, given.constants, [0]), (q,), (direction,))
        assert slope.shape[0] > 0 and not written
    assert float((plus - minus).abs().max()) >= 0


def test_copies_record_anew():
    """Copy and pickle a model whose springs have run."""
    model = network().finalize(compile=False)
    expected = evaluated(model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for a, b in zip(evaluated(copied), expected, strict=True):
            assert torch.equal(a, b)


def test_steps_without_a_compiler(monkeypatch):
    """Step by torch alone where no code can be compiled."""

    def missing(*given):
        raise Unavailable("no C++ compiler is found")

    def run():
        builder = network()
        builder.add_force(forces.Gravity((0, 0, -9.81)))
        model = builder.finalize(compile=False)
        return ImplicitEuler(1e-2).step(model, model.initial_state(BATCH))[0].q

    expected = run()
    for module, name in ((fused, "program_of"), (functions, "program_of"), (functions, "library")):
        monkeypatch.setattr(module, name, missing)
    # two solutions to the tolerance of 1e-8 N, of robots whose stiffness is some 1e3 N/m
    torch.testing.assert_close(run(), expected, rtol=0, atol=1e-9)


def test_code_that_does_not_compile_is_told(monkeypatch):
    """Warn where there is a compiler, and go on by torch."""

    def refused(*given):
        raise Unavailable("the C++ compiler fails")

    monkeypatch.setattr(fused, "program_of", refused)
    model = planar().finalize(compile=False)
    with pytest.warns(RuntimeWarning, match="stretch: torch evaluates it, which is slower: the C.. compiler fails"):
        evaluated(model)


def test_loads_alone_are_as_torch_finds_them(written):
    """Write the force of a field, of which a step asks alone for the scale of its forces."""
    model = magnet().finalize(compile=False)
    state = deformed(model)
    mechanics = model.mechanics
    start = mechanics.start(state, Control(), None, None)
    written.clear()
    found = mechanics.stencil_load(start, state.q)
    assert written == [("magnetic", True)]
    expected = next(force for force in mechanics.forces if isinstance(force, Magnetic))(state, Control())
    assert_same([found], [expected])


def test_whole_numbers_count_as_what_they_are():
    """Take constants that are tensors of whole numbers for their values, however they came into a model."""

    def hanging(material):
        points = straight((0, 0, 0), (0.5, 0, 0), 7)
        return rod_through(points, Circle(5e-3), material, [forces.Gravity((0, 0, -9.81))]).finalize()

    model, expected = hanging(Material(torch.tensor(1_000_000), torch.tensor(1000))), hanging(Material(1e6, 1000.0))
    steps, start = ImplicitEuler(0.01), model.initial_state(2)
    found, _ = steps.step(model, start)
    assert torch.equal(found.q, steps.step(expected, start)[0].q)
    assert LinearElastic({"k": torch.tensor(5)}).k.dtype == torch.float64
    for one, number in ((model, torch.tensor(79)), (expected, torch.tensor(79.0, dtype=torch.float64))):
        one.term("stretch").energy.EA.data = number
    found, info = steps.step(model, start)
    assert info.converged.all()
    # torch evaluates it in place of a loop, and rounds otherwise
    torch.testing.assert_close(found.q, steps.step(expected, start)[0].q, rtol=0, atol=1e-12)
