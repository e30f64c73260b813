"""Energies and stencils that a user writes: a strain and a psi, nothing else."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, Static, forces, straight
from torchdismech.elastic import (
    ElasticTerm,
    Energy,
    LinearElastic,
    Maxwell,
    Plastic,
    Plate,
    Stencil,
    StretchStencil,
    Sum,
)
from torchdismech.testing import check_energy, check_rigid_motion, check_stencil
from torchdismech.values import Values

RIBBON = Path(__file__).resolve().parents[2] / "examples" / "ribbon" / "ribbon.py"


@pytest.fixture(scope="module")
def ribbon():
    """Import the example."""
    spec = importlib.util.spec_from_file_location("ribbon", RIBBON)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sadowsky_energy(ribbon):
    """Pass the contract checks on both branches, and meet smoothly between them."""
    check_energy(ribbon.Sadowsky(2.0, 5.0), strains=3, size=1.5).raise_if_failed()
    energy = ribbon.Sadowsky(1.0, 0.0)
    near = [torch.tensor([[1.0 + s]], dtype=torch.float64) for s in (-1e-9, 1e-9)]
    tau, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    slopes = [energy.derivatives((kappa, zero, tau))[0] for kappa in near]
    # slopes change by curvature (about 4) times the distance of 2e-9
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(*slopes, strict=True))


def test_twisted_ribbon(ribbon):
    """Answer a twist with 4 D angle / L, D that of a plate, and the linear rod with GJ angle / L."""
    # 38 edges lie between the middles of the two clamped ones
    free = ribbon.LENGTH * 39 / 40
    angle = math.pi / 2
    torque, _ = ribbon.twisted(ribbon.ribbon(), angle)
    # an even twist is exact with any number of edges: what is left is rounding
    # D = E w h^3 / (12 (1 - nu^2)) of a plate 10 mm by .2 mm of 2 GPa and nu = .3: 1.6e-4 N m^2 / 10.92
    assert torque == pytest.approx(4 * (1.6e-4 / 10.92) * angle / free, rel=1e-9)
    # beside the torsion of a thin strip by Saint-Venant, G w h^3 / 3, this is 2 / (1 - nu)
    shear = 2e9 / (2 * 1.3)
    assert torque == pytest.approx(2 / 0.7 * shear * 1e-2 * 2e-4**3 / 3 * angle / free, rel=1e-9)
    torque, _ = ribbon.twisted(ribbon.strip(), angle)
    ratio = ribbon.THICKNESS / ribbon.WIDTH
    torsion = ribbon.WIDTH * ribbon.THICKNESS**3 * (1 / 3 - 0.21 * ratio * (1 - ratio**4 / 12))
    assert torque == pytest.approx(shear * torsion * angle / free, rel=1e-9)


@pytest.mark.slow
def test_buckled_ribbon(ribbon):
    """Hold a buckled and twisted ribbon in an equilibrium that is not the linear rod's."""
    _, soft = ribbon.twisted(ribbon.ribbon(), math.pi, approach=0.1 * ribbon.LENGTH)
    _, rod = ribbon.twisted(ribbon.strip(), math.pi, approach=0.1 * ribbon.LENGTH)
    assert (soft - rod).norm(dim=-1).max() > 0.01 * ribbon.LENGTH


class PlaneAngle(Stencil):
    """Angle in the x-z plane at a node between two neighbours; variables: the components of the two edges."""

    def __init__(self, before, node, after):
        one = np.ones(len(node))
        edges = [(before, node), (node, after)]
        super().__init__(
            [[(3 * b + k, one), (3 * a + k, -one)] for a, b in edges for k in (0, 2)],
            ["angle"],
        )

    def strain(self, local, *constants):
        """Return the angle."""
        ex, ez, fx, fz = local
        return (torch.atan2(ex * fz - ez * fx, ex * fx + ez * fz),)


class Stiffening(Energy):
    """psi = k (angle^2 / 2 + angle^4)."""

    def density(self, strain):
        """Return the density of a spring that stiffens."""
        (angle,) = strain
        return 0.01 * (0.5 * angle**2 + angle**4)


def with_angle_springs(name="hinges", compile=False):
    """Return a rod with angle springs at each third node."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 13), Circle(2e-3), Material(1e6, 1000.0))
    node = np.array([3, 6, 9])
    builder.add_term(ElasticTerm(name, PlaneAngle(node - 1, node, node + 1), Stiffening(), torch.ones(3)))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0.1, -0.5)))
    return builder.finalize(compile=compile)


def bent(model, batch=2):
    """Return a state of the model, bent and stretched at random."""
    generator = torch.Generator().manual_seed(0)
    q = model.initial_state(batch=batch).q
    return model.initial_state(q=q + 0.003 * torch.randn(q.shape, dtype=q.dtype, generator=generator))


def matrix_by_differences(model, state):
    """Return minus the derivative (B, m, m) of the elastic force by the unknowns, by central differences."""
    start, columns = model.start_step(state), []
    for dof in model.unknowns.index.tolist():
        step = torch.zeros_like(state.q)
        step[:, dof] = 1e-7
        difference = model.mechanics.elastic_force(start, state.q - step) - model.mechanics.elastic_force(
            start, state.q + step
        )
        columns.append(difference[:, model.unknowns.index] / 2e-7)
    return torch.stack(columns, -1)


def test_own_stencil():
    """Use a stencil by its strain alone: derivatives, energy report and Newton matrix follow."""
    model = with_angle_springs()
    state = bent(model)
    check_stencil(model.term("hinges").stencil, state).raise_if_failed()
    assert (model.energies(state)["hinges"] > 0).all()
    start = model.start_step(state)
    still = torch.zeros_like(state.q)
    _, values = model.mechanics.force_and_stiffness(start, state.q, still, state.time)
    matrix, differences = model.layout.pattern.to_dense(values), matrix_by_differences(model, state)
    # central differences: rounding of forces of 1 N over 1e-7 m, against entries of 1e3 N/m
    assert (matrix - differences).abs().max() < 1e-6 * matrix.abs().max()
    with torch.no_grad():  # as steps are solved
        _, without_records = model.mechanics.force_and_stiffness(start, state.q, still, state.time)
    assert torch.equal(without_records, values)


class PointToNode(Stencil):
    """Distance of a point between nodes, the sum of weight * node, from a node."""

    def __init__(self, between, weights, node):
        weights = np.asarray(weights, dtype=float)
        parts = [[(3 * b + k, weights[:, i]) for i, b in enumerate(between)] for k in range(3)]
        super().__init__([[*part, (3 * node + k, -np.ones(len(node)))] for k, part in enumerate(parts)], ["distance"])

    def strain(self, local, *constants):
        """Return the distance [m]."""
        return (torch.sqrt(sum(v * v for v in local)),)


# of 2 springs each: the middle of an edge; points elsewhere on edges and beyond their ends; whole numbers, but no signs
WEIGHTS = {"middle": [[0.5, 0.5]] * 2, "uneven": [[0.3, 0.7], [1.2, -0.2]], "whole": [[2, -1], [2, -1]]}


def with_point_springs(weights, stiffness=40.0):
    """Return a rod with springs from points between its nodes to other nodes."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 13), Circle(2e-3), Material(1e5, 1000.0))
    between = (np.array([4, 8]), np.array([5, 9]))
    stencil = PointToNode(between, weights, np.array([11, 2]))
    builder.add_term(ElasticTerm("ties", stencil, LinearElastic({"k": stiffness}), torch.ones(2)))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0.1, -0.5)))
    return builder.finalize(compile=False)


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=list(WEIGHTS))
def test_a_stencil_reads_points_between_nodes(weights):
    """Find energy, force and Newton matrix of springs that hold weighted sums of nodes, and pass the contract check."""
    model = with_point_springs(weights)
    state = bent(model)
    q = state.q.clone().requires_grad_()
    x, w = q[:, : 3 * len(model.nodes)].unflatten(1, (-1, 3)), torch.tensor(weights, dtype=q.dtype)
    apart = w[:, :1] * x[:, [4, 8]] + w[:, 1:] * x[:, [5, 9]] - x[:, [11, 2]]
    energy = 20.0 * (apart**2).sum((1, 2))
    # rounding of sums of a few numbers
    assert torch.allclose(model.energies(state)["ties"], energy.detach(), rtol=1e-12)
    (expected,) = torch.autograd.grad(-energy.sum(), q)
    none = Values({(model.term("ties").energy, "k"): torch.tensor(0.0, dtype=q.dtype)})
    with none.in_place():
        without = model.mechanics.elastic_force(model.start_step(state), state.q)
    force = model.mechanics.elastic_force(model.start_step(state), state.q) - without
    # rounding of forces of some 10 N in stretching, which the difference loses
    assert (force - expected).abs().max() < 1e-10 * expected.abs().max()
    _, values = model.mechanics.force_and_stiffness(model.start_step(state), state.q, torch.zeros_like(q), state.time)
    matrix, differences = model.layout.pattern.to_dense(values), matrix_by_differences(model, state)
    # central differences, as above; the springs' entries are some 1 % of the largest
    assert (matrix - differences).abs().max() < 1e-7 * matrix.abs().max()
    check_stencil(model.term("ties").stencil, state).raise_if_failed()


class HeightOfMiddle(Stencil):
    """How far the middle of an edge is above a node."""

    def __init__(self, edge, node):
        half, minus = np.array([0.5]), np.array([-1.0])
        super().__init__([[(3 * edge[:1] + 2, half), (3 * edge[1:] + 2, half), (3 * node + 2, minus)]], ["height"])

    def strain(self, local, *constants):
        """Return the height [m]."""
        return (local[0],)


def test_the_middle_of_an_edge_is_held_by_a_stiff_spring():
    """Keep the middle of the last edge of a cantilever at the height of its clamp; its two nodes are not."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 13), Circle(2e-3), Material(1e6, 1000.0))
    stencil = HeightOfMiddle(np.array([11, 12]), np.array([0]))
    builder.add_term(ElasticTerm("tie", stencil, LinearElastic({"k": 1e4}), torch.ones(1)))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -0.5)))
    model = builder.finalize(compile=False)
    state, info = Static(load_steps=5).step(model, model.initial_state(), throw=True)
    z = state.positions[0, :, 2]
    # the spring carries less than the rod's weight of 2 mN
    assert abs(0.5 * (z[11] + z[12]).item()) < 2e-7
    assert z[12] > 1e-4 and z[6] < -1e-4  # propped there, it sags between and its end points up
    # 3 iterations a load; a matrix that is not the derivative takes more, if it gets there
    assert info.iterations.item() <= 20


@pytest.mark.parametrize(
    ("strain", "got"), [(lambda local: local[0], "Tensor"), (lambda local: (local[0], local[0]), r"\(Tensor, Tensor\)")]
)
def test_strains_are_a_tuple(strain, got):
    """Name the stencil and its method where it returns something else than one tensor for each strain."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0))
    stencil = HeightOfMiddle(np.array([3, 4]), np.array([0]))
    stencil.strain = strain
    builder.add_term(ElasticTerm("tie", stencil, LinearElastic({"k": 1e4}), torch.ones(1)))
    message = r"\(tie\).*HeightOfMiddle\.strain\(\): expected a tuple of a tensor for each strain, got "
    with pytest.raises(InputError, match=message + got):
        builder.finalize(compile=False)


class Unweighted(PointToNode):
    """Takes every weight as +1 or -1."""

    def local(self, q):
        """Return sums of the wrong numbers."""
        dofs = [[d for d, _ in variable] for variable in self.variables]
        return [q[a] + q[b] - q[c] for a, b, c in dofs]


class Misplaced(PointToNode):
    """Lists other weights than it reads."""

    def local(self, q):
        """Return sums of other numbers."""
        return [0.5 * q[v[0][0]] + 0.5 * q[v[1][0]] - q[v[2][0]] for v in self.variables]


@pytest.mark.parametrize("cls", [Unweighted, Misplaced])
def test_the_check_of_a_stencil_goes_through_all_dofs(cls):
    """Name variables that are not the sums that are listed, and the force and matrix that follow."""
    model = with_point_springs(WEIGHTS["uneven"])
    stencil = cls((np.array([4, 8]), np.array([5, 9])), WEIGHTS["uneven"], np.array([11, 2]))
    report = check_stencil(stencil, bent(model))
    failed = {check.name for check in report.checks if not check.ok}
    assert failed == {
        "local variables are the listed sums",
        "force along moves of all dofs",
        "matrix along moves of all dofs",
    }


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ([], "got an empty list"),
        ([[]], "got an empty list"),
        ([[(np.array([0, 1]), np.ones(3))]], r"variable 0: .*\(2,\) and \(3,\)"),
        ([[(np.array([0, 1]), np.ones(2))], [(np.array([0]), np.ones(1))]], "variable 1: .*the same S"),
        ([[(np.array([0.0, 1.0]), np.ones(2))]], "variable 0: dofs have to be indices"),
        ([[(np.array([0, -1]), np.ones(2))]], "variable 0: dofs have to be indices"),
        ([[(np.array([0]), np.array([math.nan]))]], "variable 0: weights .*not finite"),
    ],
)
def test_variables_that_are_no_sums_are_refused(variables, message):
    """Name the variable and what was expected of it."""
    with pytest.raises(InputError, match=f"Stencil: .*{message}"):
        Stencil(variables, ["strain"])


def test_own_stencil_stiffens_the_rod():
    """Sag less with the springs than without."""
    tips = []
    for scale in (1.0, 0.0):
        model = with_angle_springs()
        model.term("hinges").measure *= scale
        state, _ = Static(load_steps=5).step(model, model.initial_state(), throw=True)
        tips.append(state.positions[0, -1, 2].item())
    assert tips[1] < tips[0] < 0


def test_names_are_unique():
    """Refuse a term whose name is taken."""
    with pytest.raises(InputError, match="stretch"):
        with_angle_springs(name="stretch")


@pytest.mark.parametrize("method", ["add_energy", "replace_energy", "add_dissipation", "add_inelastic"])
def test_terms_that_are_not_there_are_refused(method):
    """Name the method, its parameter, the terms and what came."""
    message = rf"^{method}: name: expected one of 'stretch', 'bend_twist', .*, got 'bending'$"
    with pytest.raises(InputError, match=message):
        getattr(RobotBuilder(), method)("bending", LinearElastic({"EI": 1.0}))


def test_a_plane_strain_is_not_frame_indifferent():
    """Show in the report that an angle in the x-z plane changes when the robot is turned in space."""
    model = with_angle_springs()
    q = model.initial_state().q.clone()
    q[0, 2:39:3] = 0.1 * q[0, 0:39:3] ** 2
    report = check_rigid_motion(model, model.initial_state(q=q))
    assert {check.name: check.ok for check in report.checks}["hinges"] is False
    assert {check.name: check.ok for check in report.checks}["bend"] is True


@pytest.mark.slow
def test_compiling_leaves_autograd_terms_eager():
    """Name the terms that stay eager, and step all the same."""
    model = with_angle_springs(compile=True)
    assert model.mechanics.uncompiled_terms() == ["hinges"]
    state, _ = ImplicitEuler(0.02).step(model, model.initial_state(), throw=True)
    eager = with_angle_springs()
    other, _ = ImplicitEuler(0.02).step(eager, eager.initial_state(), throw=True)
    assert (state.q - other.q).abs().max() < 1e-10


def test_held_tangents_have_rows_behind_those_of_springs():
    """Bend at 1, 2 and 3, then at the clamp: what docs/gradients.md says of the rows of an energy's features."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 5), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    plain = builder.finalize()
    rows = plain.term("bend_twist").stencil.count
    assert (len(plain.springs), rows) == (3, 4)
    assert plain.body.springs.nodes[:, 1].tolist() == [1, 2, 3, 0]

    class Graded(Energy):
        """Bending that differs from row to row."""

        def __init__(self):
            super().__init__()
            self.register_buffer("size", torch.arange(1.0, rows + 1, dtype=torch.float64)[:, None])

        def density(self, strain):
            return 1e-5 * self.size * (strain[0] ** 2 + strain[1] ** 2)

    builder.add_energy("bend_twist", Graded())
    assert builder.finalize().term("bend_twist").stencil.count == rows


UNLIKE = {
    ("GJ", "EI1", "EI2"): "expected stiffnesses in the order EI1, EI2, GJ, got GJ, EI1, EI2",
    (
        "EI1",
        "EI2",
    ): r"expected a stiffness for each of the term's 3 strains \(kappa1, kappa2, tau\), got EI1, EI2; 0 is none",
}


@pytest.mark.parametrize("method", ["replace_energy", "add_energy", "add_dissipation", "add_inelastic"])
@pytest.mark.parametrize("names", UNLIKE)
def test_linear_laws_for_other_strains_are_refused(method, names):
    """Refuse stiffnesses by the names of the term's own in another order, and one too few, beside other laws, too."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(4e-3), Material(1e6, 1000.0))
    builder.add_energy("bend_twist", LinearElastic({"a": 0.0, "b": 0.0, "c": 1e-6}), "other")
    viscous = "viscous_" if method == "add_dissipation" else ""
    stiffness = {f"{viscous}{name}": 1e-5 for name in names}
    law = Maxwell(stiffness, 1.0) if method == "add_inelastic" else LinearElastic(stiffness)
    getattr(builder, method)("bend_twist", law)
    with pytest.raises(InputError, match=f"{type(law).__name__}: {UNLIKE[names]}"):
        builder.finalize()


def test_sums_and_terms_of_ones_own_refuse_energies_for_other_strains():
    """Look into sums, and at the term that is made."""
    two = LinearElastic({"a": 1.0, "b": 1.0})
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(4e-3), Material(1e6, 1000.0))
    builder.replace_energy("stretch", Sum({"first": LinearElastic({"EA": 1.0}), "second": two}))
    with pytest.raises(InputError, match=r"each of the term's 1 strains \(stretch\), got a, b"):
        builder.finalize()
    stencil = StretchStencil(np.array([[0, 1]]), torch.ones(1, dtype=torch.float64))
    for energies in ((two, None), (LinearElastic({"a": 1.0}), two)):
        with pytest.raises(InputError, match=r"each of the term's 1 strains \(stretch\), got a, b"):
            ElasticTerm("springs", stencil, energies[0], measure=None, dissipation=energies[1])


def test_stiffnesses_below_zero_are_refused():
    """Refuse what a step refuses of a control, NaN and infinity."""
    for value in (-1.0, [1.0, -1.0], math.nan, math.inf):
        said = f"expected 0 or more, and finite, got {np.ravel(value)[-1]:g}$"
        with pytest.raises(InputError, match=f"^LinearElastic.EI1: {said}"):
            LinearElastic({"EI1": value, "EI2": 1.0, "GJ": 1.0})
        with pytest.raises(InputError, match=f"^Plate.stiffness: {said}"):
            Plate(value, 0.3)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Sum({}), "Sum: expected energies by name, such as .*, got {}"),
        (lambda: Sum([LinearElastic({"k": 1.0})]), "Sum: expected energies by name, such as .*, got .LinearElastic"),
        (lambda: Sum({"a": Maxwell({"k": 1.0}, 1.0)}), "Sum: expected energies by name, such as .*, got {'a': Maxwell"),
        (lambda: Sum({"a.b": LinearElastic({"k": 1.0})}), "Sum: no energy can have this name: .*a.b"),
        (lambda: LinearElastic({"k": 1.0}, {"whole": (0, 1)}), "LinearElastic: parts: whole: .* 0 to 0, got .0, 1."),
        (lambda: LinearElastic({"k": 1.0}, {"whole": 0}), "LinearElastic: parts: whole: .* 0 to 0, got 0"),
        (lambda: Plate(1.0, math.nan), "Plate.poisson: expected a number between -1 and 1, got nan"),
        (lambda: LinearElastic({"k": torch.ones(2, 1, 1)}), r"LinearElastic.k: .* or \(B, S\), got \(2, 1, 1\)"),
        (lambda: Plastic({"k": 1.0}, 1.0, together=5), "Plastic: together: expected a list of names, got 5"),
    ],
    ids=["no energies", "a list", "a law", "a name", "a part", "a part alone", "a ratio", "a constant", "a group"],
)
def test_energies_that_cannot_be(make, said):
    """Refuse them by name when they are made; they ended in errors of Python and torch, some as late as in a report."""
    with pytest.raises(InputError, match=f"^{said}"):
        make()


def test_sums_of_modules_by_name():
    """Take the energies of a dictionary of torch's."""
    total = Sum(torch.nn.ModuleDict({"first": LinearElastic({"k": 1.0}), "second": LinearElastic({"k": 2.0})}))
    assert total.density((torch.ones(1, 1),)).item() == 1.5


def test_constants_are_copies():
    """Leave the caller's tensor, and other constants made of it, as they are where one is changed in place."""
    given = torch.tensor(0.5, dtype=torch.float64)
    rod, plate = LinearElastic({"EI1": given, "EI2": given}), Plate(given, given)
    rod.EI1.data.mul_(2)
    plate.stiffness.data.mul_(2)
    assert [x.item() for x in (given, rod.EI2, plate.poisson)] == [0.5, 0.5, 0.5]
