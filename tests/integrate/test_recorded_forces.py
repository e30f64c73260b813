"""Steps with forces that change in them, and their gradients, by the stand-in for CUDA graphs; users' forces, too."""

import contextlib
import functools

import numpy as np
import pytest
import torch
from torch import nn

from tests.integrate.recordings import (
    LOADS,
    ROBOTS,
    Graphs,
    Wind,
    assert_same,
    compare,
    plates,
    rods_on_cpu,
    surface_loads,
    trained,
)
from tests.solve.stand_in import replayable
from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, Status, contact, forces, straight
from torchdismech.integrate.recorded import adjoint as recorded_adjoint
from torchdismech.integrate.recorded import gradients as recorded_gradient
from torchdismech.integrate.recorded import recording
from torchdismech.integrate.recorded.declared import unseen
from torchdismech.integrate.recorded.recordable import why_steps_unrecorded

STEPS = 4
WITHIN = 1e-11  # torch and autograd evaluate what loops and their derivatives do without the stand-in


@pytest.fixture
def replays(monkeypatch):
    """Record steps and gradients from the first on by the stand-in; the list of gradients is `gradients`."""
    graphs = Graphs(monkeypatch, "graphs")
    graphs.gradients = []

    def kept(*given):
        graphs.gradients.append(replayable(*given))
        return graphs.gradients[-1]

    monkeypatch.setattr(recorded_adjoint, "recorded", kept)
    monkeypatch.setattr(recorded_gradient, "PASSES_BEFORE_RECORDING", 1)
    monkeypatch.setattr(recorded_adjoint, "differentiated", contextlib.nullcontext)  # gradients by torch alone
    one = recorded_adjoint.RecordedAdjoint
    monkeypatch.setattr(one, "without_zeros", lambda step, *given: step)  # of a kind a GPU has one graph
    return graphs


def moved(model, weights=(), steps=STEPS):
    """Return what steps lead to from a moving state, and the gradients by its velocity and by weights of the model."""
    state = model.initial_state(batch=3)
    torch.manual_seed(0)
    velocity = (0.1 * torch.rand_like(state.velocity)).requires_grad_()
    state, found = state.replace(velocity=velocity), []
    for _ in range(steps):
        state, info = ImplicitEuler(5e-3).step(model, state)
        found += [*state.fields(), info.status, info.iterations, *info.contact.values()]
    loss = (state.q**2).sum() + state.velocity.sum()
    return [x.detach() for x in found] + list(torch.autograd.grad(loss, [velocity, *weights]))


@pytest.mark.parametrize("load", LOADS)
def test_loads_and_contact(replays, load):
    """Take the same steps and give the same gradients."""
    model = rods_on_cpu(3, LOADS[load](), solver="dense")
    assert_same(*compare(replays, moved, model), within=WITHIN)
    # set-up, two kinds of rounds, end; what accepts or shortens steps that raise a norm, as those of the tendon's
    assert 4 <= len(replays.made) <= 5 and replays.replays >= 2 * STEPS
    # the first state of a run requires other gradients than the rest
    assert [made.count for made in replays.gradients] == [STEPS - 1, 1]


@pytest.mark.parametrize("load", surface_loads())
def test_loads_on_shells(replays, load):
    """Do so on triangles."""
    assert_same(*compare(replays, moved, plates(surface_loads()[load](), solver="dense")), within=WITHIN)
    assert replays.replays >= 2 * STEPS
    assert [made.count for made in replays.gradients] == [STEPS - 1, 1]


class TestUsersForces:
    """Forces of users that say `records`."""

    def test_they_are_the_same(self, replays):
        """Give the same steps and gradients, also by weights, which an optimiser changes in place meanwhile."""

        def run(model):
            (wind,) = (force for force in model.forces if isinstance(force, Wind))
            weights, found = list(wind.network.parameters()), []
            for _ in range(3):
                found += moved(model, weights)
                with torch.no_grad():
                    for weight in weights:
                        weight.mul_(1.1)
            return found

        model = rods_on_cpu(3, Wind(), solver="dense")
        found, expected = compare(replays, run, model)
        assert_same(found, expected, within=WITHIN)
        assert len(replays.made) == 4 and [made.count for made in replays.gradients] == [3 * (STEPS - 1), 3]
        assert all(bool((g != 0).any()) for g in found[-4:])

    def test_what_changes_is_another_kind(self, replays):
        """Notice settings, modes, hooks and modules that are others, and buffers at other places."""
        wind = Wind()
        model = rods_on_cpu(3, wind, solver="dense")
        state, integrator = model.initial_state(batch=3), ImplicitEuler(5e-3)

        def kinds():
            integrator.step(model, state)
            return [id(kind) for kind in model.recordings]

        changes = [
            lambda: setattr(wind, "scale", 2e-3),
            lambda: setattr(wind, "axes", (1.0, 0.5, 1.0)),
            lambda: setattr(wind, "shape", torch.sin),
            wind.eval,
            lambda: setattr(wind, "network", Wind().network),
            lambda: setattr(wind, "mean", torch.ones(3, dtype=torch.float64)),
        ]
        seen = kinds()
        for change in changes:
            assert kinds() == seen, "the same step is of the same kind"
            change()
            now = kinds()
            assert now[0] not in seen
            seen = now

    @pytest.mark.parametrize("value", [torch.ones(3, dtype=torch.float64), [1.0], np.ones(3)])
    def test_what_could_change_unseen_ends_it(self, replays, value, monkeypatch):
        """Go on without a recording where a number becomes what no look at it would see change."""
        monkeypatch.setattr(recording, "why_steps_unrecorded", lambda model: unseen(model.forces[1].modules()))
        monkeypatch.setattr(recording, "why_evaluations_unrecorded", recording.why_steps_unrecorded)
        wind = Wind()
        model = rods_on_cpu(3, wind, solver="dense")
        state, integrator = model.initial_state(batch=3), ImplicitEuler(5e-3)
        integrator.step(model, state)
        replayed = replays.replays
        wind.calls = value
        _, info = integrator.step(model, state)
        assert (info.status == Status.CONVERGED).all()
        assert replays.replays == replayed and len(model.recordings) == 1

    def test_a_setting_that_changes_is_followed(self, replays):
        """Give what the force gives now, not what it gave when it was recorded."""

        def run(model):
            (wind,) = (force for force in model.forces if isinstance(force, Wind))
            found = moved(model)
            wind.scale = 2 * wind.scale
            return found + moved(model)

        assert_same(*compare(replays, run, rods_on_cpu(3, Wind(), solver="dense")))
        assert len(replays.made) == 8

    def test_a_force_that_changes_itself_is_refused(self, replays):
        """Say so, instead of recording each step anew."""
        model = rods_on_cpu(3, Counting(), solver="dense")
        with pytest.raises(InputError, match="Counting: says `records`, but tensors, attributes or modules change"):
            ImplicitEuler(5e-3).step(model, model.initial_state(batch=3))


class Counting(Wind):
    """A force that says `records`, and changes itself whenever it is evaluated."""

    records = True

    def nodal_force(self, state, control):
        """Return the force on the nodes (B, N, 3)."""
        self.calls += 1
        return super().nodal_force(state, control)


class Silent(Wind):
    """A force that inherits from one that says `records`, and does not say so itself."""


class Listing(Wind):
    """A force with a list of its own."""

    records = True

    def __init__(self):
        super().__init__()
        self.history = []


class Reading(Wind):
    """A force that says `records` and reads numbers, which no recording can hold."""

    records = True

    def nodal_force(self, state, control):
        """Return the force (B, N, 3), of half the size where robots are fast."""
        found = super().nodal_force(state, control)
        return found * (0.5 if float(state.velocity.detach().abs().max()) > 1e3 else 1.0)


class TestOnACPU:
    """Tapes of forces of users that say `records`: what steps and gradients are without."""

    @pytest.fixture(autouse=True)
    def _from_the_first_on(self, monkeypatch):
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
        monkeypatch.setattr(recorded_gradient, "PASSES_BEFORE_RECORDING", 1)

    @staticmethod
    def trained_twice(model):
        """Return steps and gradients, also by weights that an optimiser changes in place, and by a setting's change."""
        wind, found = model.forces[1], []
        weights = list(wind.network.parameters())
        for _ in range(2):
            found += moved(model, weights)
            with torch.no_grad():
                for weight in weights:
                    weight.mul_(1.1)
        wind.scale = 3e-3
        return found + moved(model, weights)

    def test_they_are_the_same(self):
        """Give the same states to the bit, and gradients that loops find but for rounding."""
        recorded, eager = (rods_on_cpu(3, force()) for force in (Wind, Silent))
        found, expected = self.trained_twice(recorded), self.trained_twice(eager)
        assert all(kind.recording is not None for kind in recorded.recordings) and not eager.recordings
        assert any(passes.recording is not None for kind in recorded.recordings for passes in kind.backward.values())
        assert_same(found, expected, within=WITHIN)

    @pytest.mark.parametrize("obstacle", ["rough floor", "capsule"])
    def test_beside_contact(self, obstacle):
        """Hold a learned force beside contact with friction."""
        found, expected = [], []
        for force, states in ((Wind, found), (Silent, expected)):
            builder = RobotBuilder()
            builder.add_rod(straight((0, 0, 0), (0.2, 0, 0.05), 9), Circle(2e-3), Material(1e6, 1000.0))
            builder.add_force(forces.Gravity((0, 0, -9.81)))
            builder.add_force(force())
            builder.add_contact(LOADS[obstacle]())
            model = builder.finalize(compile=False)
            states += moved(model)
            assert bool(model.recordings) == (force is Wind)
        assert_same(found, expected, within=WITHIN)

    def test_beside_contact_of_a_robot_s_own_parts(self):
        """Record what is recorded of such steps, the learned force with it."""
        runs = []
        for force in (Wind, Silent):
            model = crossing(force())
            state, _ = ImplicitEuler(5e-3).step(model, model.initial_state(batch=3))
            for _ in range(STEPS):
                state, info = ImplicitEuler(5e-3).step(model, state)
            runs.append([*state.fields(), info.status, info.iterations])
            assert bool(model.recordings) == (force is Wind)
        for recorded, other in zip(*runs, strict=True):
            # recordings of steps in which parts touch have another pattern of the matrix, so rounding differs
            assert torch.allclose(recorded.double(), other.double(), rtol=1e-9, atol=1e-12)

    def test_what_cannot_be_recorded_is_said(self):
        """Go on without a recording, and name the force and what it does."""
        model, plain = rods_on_cpu(3, Reading()), rods_on_cpu(3, Silent())
        start = model.initial_state(batch=3)
        with pytest.warns(RuntimeWarning, match="Reading: says `records`, but no recording holds it, .*reads numbers"):
            state, _ = ImplicitEuler(5e-3).step(model, start)
        expected, _ = ImplicitEuler(5e-3).step(plain, start)
        assert torch.equal(state.q, expected.q)

    def test_a_force_that_changes_itself_is_refused(self):
        """Say so, instead of recording each step anew."""
        model = rods_on_cpu(3, Counting())
        with pytest.raises(InputError, match="Counting: says `records`, but tensors, attributes or modules change"):
            ImplicitEuler(5e-3).step(model, model.initial_state(batch=3))


def crossing(force):
    """Return two rods one over the other, near enough to touch, that a force acts on."""
    builder = RobotBuilder()
    for points in (straight((-0.1, 0, 0.0), (0.1, 0, 0.0), 7), straight((0, -0.1, 0.0045), (0, 0.1, 0.0045), 7)):
        index = builder.add_rod(points, Circle(2e-3), Material(1e6, 1000.0))
        builder.clamp(nodes=[int(index[0]), int(index[-1])])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(force)
    builder.add_contact(contact.SelfContact(contact.Penalty(100.0, 5e-4)))
    return builder.finalize(compile=False)


class TestOnAGPU:
    """What `why_steps_unrecorded` says of models on a GPU, for which the "meta" device stands."""

    @staticmethod
    def said(force, make=rods_on_cpu):
        """Return what it says of rods with a force."""
        return why_steps_unrecorded(make(3, force).to("meta"))

    @pytest.mark.parametrize("load", LOADS)
    def test_the_library_s_own(self, load):
        """Record contact and forces that change in a step."""
        assert self.said(LOADS[load]()) is None

    def test_users(self):
        """Record what says so, and nothing that could change unseen."""
        assert self.said(Wind()) is None
        assert "Silent, which changes within a step and does not say `records`" in self.said(Silent())
        assert "Listing.history (list), which could change unseen" in self.said(Listing())
        hooked = Wind()
        hooked.network[1].register_forward_hook(lambda *given: None)
        assert self.said(hooked) == "hooks on SiLU"
        assert self.said(Silent(explicit=True)) is None  # a held force runs outside

    def test_contact(self):
        """Leave alone what looks at numbers: pairs of a robot's parts, constraints, meshes."""
        corners, faces = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]
        mesh = contact.Obstacle(contact.Mesh(corners, faces), contact.Penalty(1e3, 1e-3), name="stone")
        assert self.said(mesh) == "the mesh of 'stone', whose search of the nearest triangle reads numbers"
        floor = contact.Obstacle(contact.HalfSpace((0, 0, -0.01), (0, 0, 1)), contact.Complementarity())
        assert self.said(floor) == "contact of parts of a robot, or by Complementarity"

    def test_a_shape_of_the_user_s(self):
        """Leave it alone: an obstacle is no class of its own, so nothing says that it records."""

        class Bump(contact.Sphere):
            pass

        bump = contact.Obstacle(Bump((0.1, 0.0, 0.0), 0.01), contact.Penalty(1e3, 1e-3))
        assert "Bump, which changes within a step and does not say `records`" in self.said(bump)


class TestAsCompiled:
    """The way that steps take on a GPU, with compiled functions: torch.compile returns them as they are here."""

    @pytest.fixture(autouse=True)
    def not_compiled(self, monkeypatch):
        """Give a function of its own, as a compiled one is."""
        monkeypatch.setattr(torch, "compile", lambda function, **options: functools.partial(function))

    @pytest.mark.parametrize("robot", ["rods", "hinges"])
    def test_training(self, replays, robot):
        """Record gradients of trained constants in parts of a batch."""
        run = functools.partial(trained, robot=robot, chunk=2)
        found, expected = compare(replays, run, ROBOTS[robot](compile=True))
        assert_same(found, expected, within=WITHIN)
        assert replays.gradients and all(made.count > 2 for made in replays.gradients)

    @pytest.mark.parametrize("load", ["viscous", "rough floor", "magnet"])
    def test_loads(self, replays, load):
        """Record them with loads."""
        assert_same(
            *compare(replays, moved, rods_on_cpu(3, LOADS[load](), solver="dense", compile=True)), within=WITHIN
        )
        assert replays.gradients and all(made.count > 2 for made in replays.gradients)

    def test_held_loads(self, replays):
        """Record them beside loads that are given as their sum, with gradients through it."""

        class Pull(forces.Force):
            def __init__(self):
                super().__init__(explicit=True)
                self.map = nn.Linear(3, 3, dtype=torch.float64)

            def forward(self, state, control):
                return 1e-3 * self.body.on_nodes(self.map(state.node_velocities))

        torch.manual_seed(0)
        pull = Pull()
        model = rods_on_cpu(3, pull, solver="dense", compile=True)

        def run(model):
            (own,) = (force for force in model.forces if isinstance(force, Pull))
            return moved(model, list(own.parameters()))

        assert_same(*compare(replays, run, model), within=WITHIN)
        assert replays.gradients and all(made.count > 2 for made in replays.gradients)


def test_robots_that_fail_are_left_to_others(replays):
    """Differentiate a step that some robot did not take as ever, though the recording has run already."""

    def run(model):
        state = model.initial_state(batch=3)
        velocity = torch.zeros_like(state.velocity)
        velocity[0] = torch.nan
        velocity.requires_grad_()
        after, _ = ImplicitEuler(1e-2).step(model, state.replace(velocity=velocity))
        return torch.autograd.grad((after.q[1:] ** 2).sum(), [velocity])

    assert_same(*compare(replays, run, rods_on_cpu(3, LOADS["viscous"](), solver="dense")))
    assert recording.STEPS_BEFORE_RECORDING == 0
