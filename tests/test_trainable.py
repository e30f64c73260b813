"""Trained constants: factors keep signs, shifts move, names are found."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn

from tests.constant_curvature.arms import paper_arm
from tests.rigid.chains import cable
from tests.rods import rod_through
from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, forces, meshes, straight, trainable
from torchdismech.actuation import AtNodes, Tendons
from torchdismech.constant_curvature import ArmIntegrator
from torchdismech.elastic import Energy, LinearElastic
from torchdismech.magnetics import Field, Magnetic, Table
from torchdismech.rigid import chain_integrator


def rod(youngs=1e6):
    """Return a hanging rod of six nodes."""
    points, material = straight((0, 0, 0), (0.5, 0, 0), 6), Material(youngs, 1000.0, relaxation_time=0.01)
    loads = [forces.Gravity((0, 0, -9.81)), forces.Viscous(0.1), forces.Viscous(0.2)]
    return rod_through(points, Circle(5e-3), material, loads).finalize()


def value(model, name):
    """Return a constant's present value."""
    module, attribute = trainable.constants(model)[name]
    return getattr(module, attribute).detach()


def test_every_constant_has_a_name():
    """Name elastic, viscous and natural constants, sizes, and forces by kind and number."""
    names = set(trainable.constants(rod()))
    assert {
        "mass", "stretch.EA", "stretch.rest_length", "stretch.viscous_EA", "bend_twist.EI1", "bend_twist.GJ",
        "bend_twist.viscous_EI2", "bend_twist.natural_kappa1", "Gravity.acceleration", "Viscous.viscosity",
        "Viscous2.viscosity",
    } <= names  # fmt: skip


def test_factor_moves_tied_constants_together_and_keeps_their_sign():
    """Multiply both by the same positive number, however low the parameter falls."""
    model = rod()
    before = {name: value(model, name) for name in ("bend_twist.EI1", "bend_twist.GJ")}
    factor = trainable.scaled(model, list(before))
    with torch.no_grad():
        factor.log_factor.fill_(-30.0)
    for name, base in before.items():
        assert torch.allclose(value(model, name), base * torch.exp(torch.tensor(-30.0, dtype=torch.float64)))
        assert (value(model, name) > 0).all()
    assert [p for p in model.parameters() if p.requires_grad] == [factor.log_factor]


class Softened(Energy):
    """A density with a bounded constant that may be left out, and one that is a plain number."""

    not_negative = ("softening", "stiffness")

    def __init__(self):
        super().__init__()
        self.stiffness = 1e-6
        self.register_parameter("softening", None)

    def density(self, strain):
        """Return the density (springs, B) [J/m]."""
        return 0.5 * self.stiffness * strain[0] ** 2


def test_bounded_constants_that_are_not_there_are_left_out():
    """Step a robot some other constant of which is trained."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp([0, 1])
    builder.add_energy("bend_twist", Softened())
    model = builder.finalize()
    trainable.scaled(model, ["bend_twist.EI1"])
    _, info = ImplicitEuler(1e-3).step(model, model.initial_state(1))
    assert bool(info.converged.all())


def test_factors_per_element_and_per_robot():
    """Give a tensor the factor's shape; the model then knows its number of robots."""
    model = rod()
    trainable.scaled(model, ["bend_twist.EI2"], shape=(4,))
    assert value(model, "bend_twist.EI2").shape == (4,) and model.batch is None
    per_robot = trainable.scaled(model, ["bend_twist.EI1"], shape=(3, 1))
    assert model.batch == 3
    with torch.no_grad():
        per_robot.log_factor.copy_(torch.tensor([[0.0], [0.5], [1.0]]))
    state, info = ImplicitEuler(0.05).step(model, model.initial_state())
    assert info.converged.all() and state.batch == 3
    assert not torch.equal(state.q[0], state.q[2])


def test_shift():
    """Add unit x parameter, one for each element."""
    model = rod()
    shift = trainable.shifted(model, ["bend_twist.natural_kappa1"], unit=0.1, shape=(4,))
    with torch.no_grad():
        shift.shift += torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert torch.allclose(value(model, "bend_twist.natural_kappa1"), torch.tensor([0, 0.1, 0.2, 0.3]).double())


def test_state_dict_goes_into_a_model_made_alike():
    """Read back what was trained."""
    models = [rod(), rod()]
    for model in models:
        trainable.scaled(model, ["bend_twist.EI1"])
        trainable.shifted(model, ["bend_twist.natural_kappa2"], unit=0.1, shape=(4,))
    with torch.no_grad():
        for parameter in models[0].parameters():
            if parameter.requires_grad:
                parameter += 0.3
    models[1].load_state_dict(models[0].state_dict())
    for name in ("bend_twist.EI1", "bend_twist.natural_kappa2"):
        assert torch.equal(value(models[0], name), value(models[1], name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: trainable.scaled(m, ["bend_twist.EI7"]), "bend_twist.EI1"),
        (lambda m: trainable.scaled(m, ["bend_twist.natural_kappa1"]), "shifted"),
        (lambda m: [trainable.scaled(m, ["mass"]) for _ in range(2)], "trained already"),
        (lambda m: trainable.scaled(m, ["mass"], shape=(5,)), "mass"),
        (lambda m: trainable.shifted(m, ["mass"], unit=0.0), "unit"),
        (lambda m: trainable.shifted(m, {"mass": 2.0}, unit=1.0), "^shifted: powers are those of a factor"),
        (lambda m: trainable.scaled(m, None), "expected a list of names, one or more, got None"),
        (lambda m: trainable.scaled(m, (name for name in ["mass"])), "expected a list of names, one or more, got <gen"),
        (lambda m: trainable.scaled(m, [["mass"]]), r"^no constant \['mass'\] in this model; there are: "),
        (lambda m: trainable.value(m, ["mass"]), r"^no constant \['mass'\] in this model; there are: "),
        (lambda m: trainable.scaled(RobotBuilder(), ["mass"]), "^trainable: expected a model, .*, got RobotBuilder"),
        (lambda m: trainable.shifted(m.rest_state(1), ["mass"], 1.0), "^trainable: expected a model, .*, got State"),
        (lambda m: trainable.constants(type(m)), "^trainable: expected a model, .*, got the class Model itself"),
    ],
)
def test_wrong_requests_are_refused(change, message):
    """Name what is wrong and what there is."""
    with pytest.raises(InputError, match=message):
        change(rod())


def test_zeros_beside_others_stay_zeros():
    """Scale a vector along one direction; refuse a factor of which one number has nothing but zeros to scale."""
    model = rod()
    with pytest.raises(InputError, match=r"Gravity.acceleration is zero wherever a number of the factor acts"):
        trainable.scaled(model, ["Gravity.acceleration"], (3,))
    factor = trainable.scaled(model, ["Gravity.acceleration"])
    with torch.no_grad():
        factor.log_factor.fill_(math.log(2))
    assert value(model, "Gravity.acceleration").tolist() == pytest.approx([0, 0, -2 * 9.81])


@pytest.mark.parametrize(
    ("names", "shape", "message"),
    [
        (["bend_twist.EI1", "bend_twist.EI7"], (), "no constant 'bend_twist.EI7'"),
        (["bend_twist.EI1", "bend_twist.natural_kappa1"], (), "zero wherever"),
        (["bend_twist.EI1", "mass"], (4,), "mass: a change of shape"),
        (["bend_twist.EI1", "bend_twist.EI2"], (), "EI2 is trained already"),
        (["bend_twist.EI1", "bend_twist.EI1"], (), "each name once, got 'bend_twist.EI1' twice"),
    ],
)
def test_refused_requests_leave_the_model_as_it_was(names, shape, message):
    """Train none of the names where one is refused, by a factor or by a shift; the others can be asked for again."""
    model = rod()
    trainable.scaled(model, ["bend_twist.EI2"])
    before = [name for name, _ in model.named_parameters()]
    requests = [lambda: trainable.scaled(model, names, shape)]
    if "zero" not in message:
        requests.append(lambda: trainable.shifted(model, names, 1.0, shape))
    for request in requests:
        with pytest.raises(InputError, match=message):
            request()
    assert [name for name, _ in model.named_parameters()] == before
    trainable.scaled(model, ["bend_twist.EI1"])


@pytest.mark.parametrize("name", ["stretch.EA", "bend_twist.EI1", "bend_twist.viscous_EI1", "Viscous.viscosity"])
@pytest.mark.parametrize("shape", [(7,), (2, 3), (0,), (0, 1), (2, 1, 4)])
def test_shapes_that_do_not_go_with_one_number(name, shape):
    """Refuse what no term of the robot can be evaluated with; it was found in the first step, deep in the library."""
    model = rod()
    with pytest.raises(InputError, match=rf"^{name}: a change of shape \({shape[0]},.*\) does not go with "):
        trainable.scaled(model, [name], shape)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    trainable.scaled(model, [name], (2, 1))
    assert model.batch == 2


@pytest.mark.parametrize("shape", [3, (-1,), (2.5,), "a", None, (True,), [[3]], torch.ones(2)])
@pytest.mark.parametrize("by", [trainable.scaled, lambda *given: trainable.shifted(*given[:2], 1.0, given[2])])
def test_shapes_are_tuples_of_whole_numbers(by, shape):
    """Refuse what torch makes no tensor of, or a slip such as 3 for (3,), by the name of the argument."""
    model = rod()
    message = r"^(scaled|shifted): shape: expected a (tuple of whole numbers, such as \(3,\)|whole number from 0 up)"
    with pytest.raises(InputError, match=message):
        by(model, ["bend_twist.EI1"], shape)
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("power", "message"),
    [
        (math.nan, "expected a finite number other than 0, got nan"),
        (math.inf, "expected a finite number other than 0, got inf"),
        (0, "expected .* other than 0, got 0.0; a power of 0 trains nothing"),
        ("1", "expected a number, got '1'"),
    ],
)
def test_powers_are_numbers(power, message):
    """Refuse powers that make a constant NaN, or train nothing."""
    model = rod()
    with pytest.raises(InputError, match=f"^scaled: the power of mass: {message}"):
        trainable.scaled(model, {"bend_twist.EI1": 1, "mass": power})
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("unit", [math.nan, math.inf, -1.0, "1", torch.ones((), requires_grad=True)])
def test_units_are_numbers(unit):
    """Refuse units that are no finite numbers above zero, or ask for a gradient, which was dropped."""
    with pytest.raises(InputError, match="^shifted: unit: "):
        trainable.shifted(rod(), ["mass"], unit)


OF_POINTS = {  # numbers of three dimensions; the robots are the first, in a table over time the second
    "Tendons.offset": 1e-2 * torch.linspace(1.0, 2.0, 18, dtype=torch.float64).view(1, 6, 3),
    "PointForce.force": 1e-3 * torch.linspace(1.0, 2.0, 6, dtype=torch.float64).view(1, 2, 3),
    "Magnetic.magnetisation": 1e3 * torch.linspace(1.0, 2.0, 15, dtype=torch.float64).view(1, 5, 3),
    "Magnetic.field.rows": 1e-2 * torch.linspace(1.0, 2.0, 6, dtype=torch.float64).view(2, 1, 3),
}


class Rows(Field):
    """A uniform field, the mean of rows (T, B, 3)."""

    uniform, per_robot, robot_dimension = True, ("rows",), 1

    def __init__(self, rows):
        super().__init__()
        self.rows = nn.Parameter(rows, requires_grad=False)

    def at(self, time):
        """Return the field (B, 3)."""
        return self.rows.mean(0).expand(len(time), 3)


def loaded(**changed):
    """Return a rod with these loads, of which some may be changed."""
    offset, force, magnetisation, rows = (changed.get(name, base) for name, base in OF_POINTS.items())
    loads = [
        Tendons([AtNodes(range(6), offset)], tension=0.1),
        forces.PointForce([3, 5], force),
        Magnetic(magnetisation, Rows(rows)),
    ]
    points = straight((0, 0, 0), (0.5, 0, 0), 6)
    return rod_through(points, Circle(5e-3), Material(1e6, 1000.0), loads).finalize()


@pytest.mark.parametrize("kind", ["own", "own of one robot", "one of each robot", "own of each robot"])
@pytest.mark.parametrize("name", OF_POINTS)
def test_constants_of_three_dimensions_are_trained(name, kind):
    """Shift them in their own shape, by a number of each robot or by all numbers of each: as if they were given so."""
    base, axis = OF_POINTS[name], name.endswith("rows")
    shape = [1, 1, 1] if kind == "one of each robot" else list(base.shape)
    if kind == "own of one robot":
        del shape[0]
        shape[0] = 1 if axis else shape[0]
    elif kind != "own":
        shape[axis] = 3
    model, unit = loaded(), float(base.mean())
    shift = trainable.shifted(model, [name], unit, shape)
    with torch.no_grad():
        shift.shift.copy_(torch.linspace(-0.5, 0.5, shift.shift.numel()).view(shape))
    assert model.batch == (3 if "each" in kind else None)
    given = loaded(**{name: base + unit * shift.shift.detach()})
    trained, _ = ImplicitEuler(0.05).step(model, model.initial_state(3))
    expected, info = ImplicitEuler(0.05).step(given, given.initial_state(3))
    assert info.converged.all()
    # offsets are added to places in another order, which rounds: 1e-17 of the rod's half metre, over a soft rod
    torch.testing.assert_close(trained.q, expected.q, rtol=0, atol=1e-12)
    (slope,) = torch.autograd.grad(trained.q.square().sum(), [shift.shift])
    assert slope.isfinite().all() and slope.abs().max() > 0


@pytest.mark.parametrize("shape", [(5, 3), (3, 5, 3), (2, 6, 2), (3, 1), (1, 1, 6, 3), (2, 3, 6, 3)])
def test_shapes_that_constants_of_three_dimensions_do_not_have_are_refused(shape):
    """Refuse what is neither of points, nor of components, nor of robots."""
    with pytest.raises(InputError, match=r"a change of shape .* does not go with its shape \(1, 6, 3\)"):
        trainable.shifted(loaded(), ["Tendons.offset"], 1.0, shape)


def in_field(field):
    """Return a magnetised rod in a field."""
    points = straight((0, 0, 0), (0.5, 0, 0), 6)
    return rod_through(points, Circle(5e-3), Material(1e6, 1000.0), [Magnetic((1e3, 0.0, 0.0), field)]).finalize()


def test_a_table_of_fields_is_trained():
    """A shift of a table's rows turns a magnetised rod."""
    model = in_field(Table([0.0, 1.0], torch.ones(2, 3)))
    shift = trainable.shifted(model, ["Magnetic.field.rows"], 0.01)
    after, _ = ImplicitEuler(0.05).step(model, model.initial_state(2))
    (slope,) = torch.autograd.grad(after.q.square().sum(), [shift.shift])
    assert slope.isfinite() and slope != 0


class Named(Field):
    """A field whose tensor has the name of a method of torch's containers."""

    per_robot = ("values",)

    def __init__(self, value):
        super().__init__()
        self.values = nn.Parameter(torch.tensor(value), requires_grad=False)

    def forward(self, position, time):
        """Return the field (B, E, 3)."""
        return self.values.expand_as(position)


def test_a_name_that_torch_cannot_train_is_refused():
    """Say what to do about a tensor called `values`, which parametrizations have as a method."""
    model = in_field(Named([1.0, 0.0, 0.0]))
    with pytest.raises(InputError, match="Magnetic.field.values: torch trains no tensor .* of another name"):
        trainable.shifted(model, ["mass", "Magnetic.field.values"], 0.01)
    trainable.scaled(model, ["mass"])


def moved(model, batch=2):
    """Return the states after some steps from rest."""
    state = model.initial_state(batch=batch).detach()
    for _ in range(3):
        state, _ = ImplicitEuler(5e-3).step(model, state)
    return state


def test_a_neighbour_that_requires_gradients_changes_none():
    """Find the gradient by a trained constant also where another constant of its module is a leaf of its own."""
    found = []
    for neighbour in (False, True):
        model = rod()
        factor = trainable.scaled(model, ["bend_twist.EI1"])
        module, name = trainable.constants(model)["bend_twist.EI2"]
        getattr(module, name).requires_grad_(neighbour)
        found += torch.autograd.grad(moved(model).q.square().sum(), factor.log_factor)
    assert found[0].abs() > 0 and torch.equal(*found)


def test_a_robot_that_fails_by_its_constant_leaves_the_others_their_gradients():
    """Let one robot's trained stiffness be no number: gradients of the other, and of what both share, stay."""
    found = []
    for wrong in (0.0, torch.nan):
        model = rod()
        own = trainable.scaled(model, ["bend_twist.EI1"], shape=(2, 1))
        shared = trainable.scaled(model, ["bend_twist.GJ", "stretch.EA"])
        with torch.no_grad():
            own.log_factor[1] = wrong
        loss = moved(model).q[0].square().sum()
        by_own, by_shared = torch.autograd.grad(loss, [own.log_factor, shared.log_factor])
        found.append((by_own[0], by_shared))
    for right, beside_a_failed_one in zip(*found, strict=True):
        # a robot's numbers do not depend on the others', but for the order of sums over robots
        assert right.abs().max() > 0 and (right - beside_a_failed_one).abs().max() <= 1e-12 * right.abs().max()


@pytest.mark.parametrize(
    ("make", "integrator"),
    [
        (rod, ImplicitEuler(1e-3)),
        (lambda: cable(2), chain_integrator("sdirk2", 1e-3)),
        (paper_arm, ArmIntegrator(1e-3)),
    ],
    ids=["rods", "chain", "arm"],
)
def test_a_model_that_was_stepped_is_freed(make, integrator):
    """Keep no model alive by what is remembered of its constants."""
    model = make()
    integrator.step(model, model.initial_state())
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_constants_of_a_dissipation_are_not_those_of_the_energy():
    """Name both where both are of one class: stiffness and viscosity of a shell's material that relaxes."""
    model = relaxing_shell(relaxation_time=0.05)
    known = trainable.constants(model)
    for name in ("membrane", "midedge"):
        term = model.term(name)
        for attribute in ("stiffness", "poisson"):
            assert known[f"{name}.{attribute}"] == (term.energy, attribute)
            assert known[f"{name}.viscous_{attribute}"] == (term.dissipation, attribute)
    assert trainable.constants(relaxing_shell(relaxation_time=0.0)).keys() < known.keys()
    before = model.energies(stretched := model.initial_state(q=1.01 * model.body.rest_q))["membrane"]
    trainable.scaled(model, ["membrane.stiffness"]).log_factor.data.fill_(1.0)
    assert float((model.energies(stretched)["membrane"] / before).detach()) == pytest.approx(math.e)


def relaxing_shell(relaxation_time: float):
    """Return a shell of the default kinds of terms."""
    sheet = meshes.rectangle(0.1, 0.05, spacing=0.05)
    builder = RobotBuilder()
    builder.add_shell(sheet.nodes, sheet.triangles, 1e-3, Material(1e6, 1100.0, relaxation_time=relaxation_time))
    return builder.finalize()


def test_second_dissipation_has_names_of_its_own():
    """Number what an added dissipation calls as the material's does, or as the energy's constants are called."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 4), Circle(1e-3), Material(1e6, 1100.0, relaxation_time=0.01))
    little = torch.tensor(1e-6, dtype=torch.float64)
    added, other = (LinearElastic(dict.fromkeys(names, little)) for names in (("EI1", "EI2", "GJ"), ("c1", "c2", "c3")))
    builder.add_dissipation("bend_twist", added)
    builder.add_dissipation("bend_twist", other)
    model = builder.finalize()
    known, term = trainable.constants(model), model.term("bend_twist")
    assert known["bend_twist.EI1"] == (term.energy, "EI1")
    assert known["bend_twist.viscous_EI1"][1] == "viscous_EI1"
    assert known["bend_twist.viscous_EI1_2"] == (added, "EI1")
    assert known["bend_twist.c1"] == (other, "c1")


def test_viscous_constants_are_called_so_once():
    """Number constants of an added dissipation that begin with viscous_, as those of a scene do."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 4), Circle(1e-3), Material(1e6, 1100.0, relaxation_time=0.01))
    little = torch.tensor(1e-6, dtype=torch.float64)
    builder.add_dissipation(
        "bend_twist", LinearElastic(dict.fromkeys(("viscous_EI1", "viscous_EI2", "viscous_GJ"), little))
    )
    known = trainable.constants(builder.finalize())
    assert {"bend_twist.viscous_EI1", "bend_twist.viscous_EI1_2", "bend_twist.viscous_GJ_2"} <= set(known)
    assert not any("viscous_viscous" in name for name in known)


def test_constants_have_numbers_by_their_names():
    """Read a constant before and after it is trained; refuse a name that there is not."""
    model = rod()
    trainable.value(model, "bend_twist.EI1").zero_()  # a copy
    before = trainable.value(model, "bend_twist.EI1")
    assert (before > 0).all()
    factor = trainable.scaled(model, ["bend_twist.EI1"])
    with torch.no_grad():
        factor.log_factor.fill_(1.0)
    after = trainable.value(model, "bend_twist.EI1")
    torch.testing.assert_close(after, torch.e * before)
    assert not after.requires_grad
    with pytest.raises(InputError, match="no constant 'EI' in this model"):
        trainable.value(model, "EI")


def test_bounds_hold_for_what_takes_the_place_of_an_energy():
    """They were those of the energy before, so that a stiffness below zero was stepped without a word."""
    model = rod_through(straight((0, 0, 0), (0.3, 0, 0), 5), Circle(5e-3), Material(1e6, 1e3)).finalize()
    own = model.term("bend_twist").energy
    own.EI1.requires_grad_()
    state = ImplicitEuler(0.01).step(model, model.initial_state())[0].detach()
    names = ("EI1", "EI2", "GJ")
    model.term("bend_twist").energy = other = LinearElastic(
        {name: getattr(own, name).detach().clone() for name in names}
    )
    other.EI1.requires_grad_()
    with torch.no_grad():
        other.EI1.neg_()
    with pytest.raises(InputError, match="bend_twist.EI1: expected 0 or more, got -"):
        ImplicitEuler(0.01).step(model, state)
