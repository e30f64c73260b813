"""What is saved and copied of a model is its own, also in the midst of a step."""

import copy
import pickle

import pytest
import torch
from torch.nn.utils import parametrize

from tests.rods import rod_through
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    RobotBuilder,
    forces,
    meshes,
    straight,
    trainable,
    unroll,
)
from torchdismech.contact import Penalty, SelfContact
from torchdismech.errors import InputError
from torchdismech.forces import Force
from torchdismech.rigid import Radau, RigidChain
from torchdismech.values import evaluated, originals_in_place

ROBOTS = 5


class Interrupted(Force):
    """No force; whatever happens in a step while it is evaluated, such as a signal."""

    def __init__(self, happens):
        super().__init__()
        self.happens = [happens]

    def forward(self, state, control):
        """Return zeros, once something has happened."""
        self.happens[0]()
        return torch.zeros_like(state.q)


class Learned(Force):
    """A force with a weight that is learned."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, state, control):
        """Return a drag on each dof."""
        return -self.weight * state.velocity


def nothing():
    """Do nothing."""


def rods(trained=False):
    """Return rods, each with a stiffness of its own, and what happens while they are stepped."""
    youngs = torch.linspace(1e6, 3e6, ROBOTS, dtype=torch.float64)[:, None]
    interrupted = Interrupted(nothing)
    loads = [forces.Gravity((0, 0, -9.81)), interrupted]
    model = rod_through(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(5e-3), Material(youngs, 1100.0), loads).finalize()
    if trained:
        trainable.scaled(model, ["bend_twist.EI1"])
    return model, interrupted.happens


def stepped(model):
    """Return where the rods are after a step in which a control sets gravity."""
    gravity = torch.tensor([[0.0, 1.0, -9.0]] * ROBOTS, dtype=torch.float64)
    state, info = ImplicitEuler(1e-2, chunk=2).step(
        model, model.initial_state(), Control(values={"Gravity.acceleration": gravity})
    )
    assert bool(info.converged.all())
    return state.q


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("kept", [lambda m: m.state_dict(), lambda m: copy.deepcopy(m).state_dict()])
def test_what_is_saved_within_a_step_is_the_models_own(kept, trained):
    """Save and copy while a part of the robots, and a control's gravity, stand in the model; the step is the same."""
    model, happens = rods(trained)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    undisturbed, found = stepped(model), []
    happens[0] = lambda: found.append((len(model.terms[1].energy.EI1), kept(model)))
    with torch.no_grad():
        disturbed = stepped(model)
    happens[0] = nothing
    assert min(rows for rows, _ in found) == 2 < ROBOTS  # some looks are at a model that holds a part
    for _, saved in found:
        assert list(saved) == list(own)
        assert all(torch.equal(saved[name], own[name]) for name in own)
    assert torch.equal(disturbed, undisturbed)
    assert all(torch.equal(model.state_dict()[name], own[name]) for name in own)


@pytest.mark.parametrize(
    ("called", "asked"),
    [("load_state_dict", lambda m, own: m.load_state_dict(own)), ("pickle", lambda m, own: pickle.dumps(m))],
)
def test_what_has_to_wait_is_refused_within_a_step(called, asked):
    """Load numbers, and pickle, while those of a part of the robots stand in the model."""
    model, happens = rods()
    own = model.state_dict()

    def happening():
        if len(model.terms[1].energy.EI1) < ROBOTS:
            asked(model, own)

    happens[0] = happening
    with pytest.raises(InputError, match=rf"^{called}: expected a model between two steps"):
        stepped(model)
    happens[0] = nothing
    asked(model, own)


def test_trained_modules_are_of_their_own_kind_while_values_stand_in_them():
    """Show recordings and compiled code the class that they know, and a reader within it the one that it is."""
    model, _ = rods(trained=True)
    energy = model.terms[1].energy
    kind = type(energy)
    with evaluated([energy]).in_place():
        assert type(energy) is kind.__mro__[1] and "parametrizations" not in energy._modules
        with originals_in_place():
            assert type(energy) is kind and "parametrizations" in energy._modules
        assert type(energy) is kind.__mro__[1] and "parametrizations" not in energy._modules
    assert type(energy) is kind and "parametrizations" in energy._modules


def chain():
    """Return a chain of rigid elements: its constants are its own, not those of a part."""
    return RigidChain.cylinder(2, length=0.3, diameter=6e-3, density=1100.0, youngs=2e7, viscosity=1e5)


@pytest.mark.parametrize(
    ("made", "integrator", "factor", "shift"),
    [
        (lambda: rods()[0], ImplicitEuler(1e-2), {"bend_twist.EI1": 1, "mass": 2}, "Gravity.acceleration"),
        (chain, Radau(1e-2), {"stiffness_z": 1, "damping_z": 1}, "length"),
    ],
)
def test_trained_models_are_pickled(made, integrator, factor, shift):
    """Pickle a model twice: it has its numbers, names and changes, and moves and is trained as the one it was."""
    model = made()
    trainable.scaled(model, factor).log_factor.data += 0.3
    trainable.shifted(model, [shift], 1e-3).shift.data -= 1.0
    read = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(model))))
    ends = []
    for each in (model, read):
        run = unroll(each, each.initial_state(), integrator, steps=2)
        run.positions[-1].square().sum().backward()
        ends.append(run.positions[-1])
    assert torch.equal(*ends)
    assert list(read.state_dict()) == list(model.state_dict())
    for (name, own), (same, other) in zip(model.named_parameters(), read.named_parameters(), strict=True):
        assert name == same and torch.equal(own, other) and own.requires_grad == other.requires_grad
        assert own.grad is other.grad is None or torch.equal(own.grad, other.grad)
    assert sum(parameter.requires_grad for parameter in read.parameters()) == 2  # the factor is still one for both


class Positive(torch.nn.Module):
    """A user's parametrization: it keeps the logarithms of positive numbers."""

    def forward(self, logarithm):
        """Return the numbers."""
        return logarithm.exp()

    def right_inverse(self, numbers):
        """Return their logarithms, which torch keeps."""
        return numbers.log()


class Drag(Learned):
    """A learned drag whose weight a user keeps positive, beside a rate that is trained."""

    per_robot = ("rate",)

    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.full((), 2.0, dtype=torch.float64), requires_grad=False)
        self.weight.data.fill_(3.0)
        parametrize.register_parametrization(self, "weight", Positive())


def test_parametrizations_of_users_are_pickled_beside_trained_constants():
    """Pickle a force twice in evaluation mode: its weight stays 3, not log(log(3)), and its parts stay in that mode."""
    model = rod_through(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(5e-3), Material(1e6, 1100.0), [Drag()]).finalize()
    trainable.scaled(model, ["Drag.rate"])
    model.eval()
    read = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(model))))
    assert torch.equal(read.forces[0].weight, model.forces[0].weight)
    assert list(read.state_dict()) == list(model.state_dict())
    assert not any(part.training for part in read.forces[0].parametrizations.modules())


def test_what_a_force_has_learned_goes_into_other_robots():
    """Save a learned force alone: a robot with other nodes keeps its masses, and no robot is needed to load it."""
    learned = Learned()
    for nodes, density, force in ((4, 1100.0, learned), (7, 2200.0, Learned())):
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), nodes), Circle(5e-3), Material(1e6, density))
        builder.add_force(force)
        builder.add_contact(SelfContact(Penalty(10.0, 1e-3)))
        model = builder.finalize()
        assert not [name for name in model.state_dict() if ".body." in name]
    with torch.no_grad():
        learned.weight += 1.0
    saved, mass = learned.state_dict(), model.body.mass.clone()
    assert list(saved) == ["weight"]
    for loaded in (model.forces[0], Learned()):
        loaded.load_state_dict(saved)
        assert loaded.weight.item() == 2.0
    with pytest.raises(InputError, match=r"Learned: .* take over what was learned by new.load_state_dict"):
        rod_through(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(5e-3), Material(1e6, 1.0), [learned]).finalize()
    assert torch.equal(model.body.mass, mass)
    trainable.scaled(model, ["mass"])
    assert [name for name, _ in model.forces[0].named_parameters("of")] == ["of.weight"]
    assert sum(p.requires_grad for p in model.parameters()) == 2


def test_a_force_has_the_factors_that_it_shares_with_its_robot():
    """Train a drag by the factor that scales masses, too; find the factor once, and the robot's others nowhere."""
    line, material, drag = straight((0, 0, 0), (0.3, 0, 0), 4), Material(1e6, 1100.0), forces.MassDamping(1.0)
    model = rod_through(line, Circle(5e-3), material, [drag]).finalize()
    shared = trainable.scaled(model, ["mass", "MassDamping.rate"])
    trainable.scaled(model, ["edge_length"])
    assert any(parameter is shared.log_factor for parameter in model.forces[0].parameters())
    assert [name for name, p in model.forces[0].named_parameters() if p.requires_grad] == [
        "parametrizations.rate.0.log_factor"
    ]


def test_forces_that_a_force_holds_have_no_numbers_of_the_robot():
    """Bind two forces within one before the robot's mass is trained: their weights alone are the force's own."""

    class Both(Force):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList([Learned(), Learned()])

        def bind(self, body):
            super().bind(body)
            for part in self.parts:
                part.bind(body)

        def forward(self, state, control):
            return self.parts[0](state, control) + self.parts[1](state, control)

    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(5e-3), Material(1e6, 1100.0))
    builder.add_force(both := Both())
    trainable.scaled(builder.finalize(), ["mass"])
    own = ["parts.0.weight", "parts.1.weight"]
    for once in (False, True):
        assert [name for name, _ in both.named_parameters(remove_duplicate=once)] == own
    assert list(both.state_dict()) == own
    assert not list(both.named_parameters(recurse=False))


def test_modules_that_hold_forces_have_what_the_forces_have():
    """Put forces of a robot whose masses are trained into a list: their weights are all that it can train or freeze."""
    listed = torch.nn.ModuleList([Learned(), Learned()])
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(5e-3), Material(1e6, 1100.0))
    for force in listed:
        builder.add_force(force)
    model = builder.finalize()
    mass = trainable.scaled(model, ["mass"])
    for once in (False, True):
        assert [name for name, _ in listed.named_parameters(remove_duplicate=once)] == ["0.weight", "1.weight"]
    assert not [name for name, _ in listed.named_buffers() if "body" in name]
    listed.requires_grad_(False)
    assert [parameter for parameter in model.parameters() if parameter.requires_grad] == [mass.log_factor]
    listed.float().eval()
    assert model.body.nodes.dtype == torch.float64 and model.body.training and listed[0].weight.dtype == torch.float32
    both = torch.nn.ModuleList([model.forces[0], model])  # the robot is left out below the force alone
    assert any(parameter is mass.log_factor for parameter in both.parameters())
    seen = set()
    next(model.forces[0].named_modules(seen))  # the caller reads no further
    assert model.body in {module for _, module in model.named_modules(seen)}


def test_masses_are_put_back_where_a_force_acts():
    """Exchange the masses of a robot with a force for the length of a call of torch.func."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(5e-3), Material(1e6, 1100.0))
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    model = builder.finalize()

    class Weighed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self):
            return self.model.body.mass.sum()

    mass = model.body.mass
    heavier = torch.func.functional_call(Weighed(), {"model.body.mass": 2 * mass}, ())
    assert heavier == 2 * mass.sum() and model.body.mass is mass


@pytest.mark.filterwarnings("ignore:shell. bending 'hinge' depends on the mesh")
@pytest.mark.parametrize("bending", [None, "hinge", "midedge"])
def test_numbers_are_saved_by_safetensors(bending, tmp_path):
    """Save rods, and shells of both kinds, whose constants lie apart in memory; save a factor of two of them, too."""
    from safetensors.torch import load, load_model, save, save_model

    def robot(youngs):
        builder, material = RobotBuilder(), Material(youngs, 1100.0, 0.3)
        if bending is None:
            builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(5e-3), material)
        else:
            sheet = meshes.disc(radius=0.1, spacing=0.05)
            builder.add_shell(sheet.nodes, sheet.triangles, 1e-3, material, bending=bending)
        return builder.finalize()

    saved, loaded = robot(1e6), robot(2e6)
    loaded.load_state_dict(load(save(saved.state_dict())))
    rod, hinges = ["stretch.EA", "bend_twist.EI1"], ["membrane.membrane", "hinge.hinge"]
    names = {None: rod, "hinge": hinges, "midedge": ["membrane.stiffness", "midedge.stiffness"]}[bending]
    models = [saved, robot(2e6)]
    factors = [trainable.scaled(model, names) for model in models]
    with torch.no_grad():
        factors[0].log_factor.fill_(0.5)
    save_model(saved, tmp_path / "robot.safetensors")
    load_model(models[1], tmp_path / "robot.safetensors")
    assert factors[1].log_factor == 0.5
    assert torch.equal(*(trainable.value(model, names[1]) for model in models))


@pytest.mark.parametrize("assign", [False, True])
def test_numbers_that_earlier_versions_saved_are_loaded(assign):
    """Load a model's numbers with those of its body under each force, too, where a factor of its masses is trained."""
    model, twin = rods()[0], rods()[0]
    factors = [trainable.scaled(each, ["mass"]).log_factor for each in (model, twin)]
    factors[0].data += 0.1
    numbers = model.state_dict()
    again = {f"forces.0.{name}": 2 * tensor for name, tensor in numbers.items() if name.startswith("body.")}
    twin.load_state_dict(numbers | again, assign=assign)
    assert torch.equal(twin.body.mass, model.body.mass)
    assert twin.forces[0].body is twin.body and list(twin.state_dict()) == list(numbers)
