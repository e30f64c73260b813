"""What comes in the wrong place, or as another thing than is meant: named, with what was expected."""

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import torchdismech
from tests.rods import rod_through
from torchdismech import (
    Circle,
    Control,
    Geometry,
    ImplicitEuler,
    InputError,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    Trajectory,
    control,
    read_mesh,
    rollout,
    straight,
    unroll,
    write_dismech,
)
from torchdismech.actuation import AtNodes, Fixed, OnEdges, Tendons
from torchdismech.constant_curvature import ArmIntegrator
from torchdismech.contact.obstacles.mesh import Mesh
from torchdismech.elastic import LinearElastic
from torchdismech.errors import FailureWarning
from torchdismech.forces import Force, Gravity, PointForce, Thrust
from torchdismech.io.scene import load_scene
from torchdismech.rigid import Radau
from torchdismech.testing import check_energy, check_symmetry
from torchdismech.view.export import save_export
from torchdismech.view.movie import save_movie

DEMO = Path(torchdismech.__file__).parent / "demo" / "scene.toml"
ROW = [[0.0, 0, 0], [0.1, 0, 0], [0.2, 0, 0]]


def builder(section=None, material=None, loads=()):
    """Return a builder with a rod of four edges, clamped at its start."""
    section, material = section or Circle(2e-3), material or Material(1e6, 1000.0)
    return rod_through(straight((0, 0, 0), (0.3, 0, 0), 5), section, material, loads)


def run(integrator=None, model=None, **options):
    """Take a step of a rod."""
    model = model or builder().finalize()
    return rollout(model, builder().finalize().initial_state(), integrator or ImplicitEuler(1e-3), 1, **options)


def started():
    """Return a model and its state."""
    model = builder().finalize()
    return model, model.initial_state()


def curvatures():
    """Return the curvatures of a rod, and its model."""
    model = builder().finalize()
    return control.Strains(model, ["curvature"]), model


MISUNDERSTOOD = {
    "path for a writer": (
        lambda: run(writer="run.h5"),
        "writer: expected one, such as TrajectoryWriter.* got 'run.h5'",
    ),
    "number for a memory": (lambda: run(memory=3), "memory: expected tensors by name, .* got int"),
    "list for elements": (
        lambda: control.Strains(builder().finalize(), ["stretch"], [0, 1]),
        "elements: expected indices by field, .* got list",
    ),
    "number for an observer": (
        lambda: unroll(*started(), ImplicitEuler(1e-3), 1, observe=3),
        "observe: expected a function of .* got 3",
    ),
    "no direction of gravity": (
        lambda: check_symmetry(Gravity((0, 0, -1)), *started(), gravity=3),
        "gravity: expected a direction .* got 3",
    ),
    "text for a size": (
        lambda: check_energy(LinearElastic({"EA": torch.ones(())}), 1, size="a"),
        "check_energy: size: expected a finite number above 0, got 'a'",
    ),
    "no file to read": (lambda: read_mesh(None), "read_mesh: expected the path of a file, got None"),
    "no file of a mesh": (lambda: Mesh.from_file(None), "Mesh.from_file: expected the path of a file, got None"),
    "no file to load": (lambda: Trajectory.load(3), "Trajectory.load: expected the path of a file, got 3"),
    "no scene": (lambda: load_scene(None), "load_scene: expected the path of a file, got None"),
    "steps of a scene beyond counting": (
        lambda: load_scene(DEMO, steps=10**400),
        r"load_scene: steps: expected at most 1e\+12, got 1000",
    ),
    "name for what is added to a scene": (
        lambda: load_scene(DEMO).build(add="terms"),
        r"Scene.build: add: expected a function of the builder, as lambda .*, or None, got 'terms'",
    ),
    "force that is added to a scene": (
        lambda: load_scene(DEMO).build(add=Gravity((0.0, 0.0, -1.0))),
        r"as lambda builder: builder.add_force\(...\), or None, got Gravity",
    ),
    "number for a part of a scene": (lambda: load_scene(DEMO).part(3), "Scene.part: rows: expected a slice .* got int"),
    "no folder to write to": (
        lambda: write_dismech("nowhere/rod.txt", Geometry(np.zeros((2, 3)), np.array([[0, 1]]), np.zeros((0, 3), int))),
        "nowhere/rod.txt: cannot be written: No such file",
    ),
    "class for an integrator": (
        lambda: run(ImplicitEuler),
        "integrator: .* got the class ImplicitEuler itself",
    ),
    "number for an integrator": (lambda: run(0.01), "integrator: expected .* such as ImplicitEuler.* got float"),
    "builder for a model": (lambda: run(model=builder()), "model: expected one, .*finalize.* got RobotBuilder"),
    "control for a schedule": (lambda: run(schedule=Control()), "schedule: expected a function .* got Control; lambda"),
    "class for a controller": (lambda: run(controller=control.PI), "controller: .* got the class PI itself"),
    "text for dt": (lambda: ImplicitEuler("a"), "dt: expected a number of seconds above 0, got 'a'"),
    "text of a number for dt": (lambda: ImplicitEuler("1e-3"), "dt: expected a number of seconds above 0, got '1e-3'"),
    "trained dt": (
        lambda: ImplicitEuler(torch.tensor(0.01, requires_grad=True)),
        "dt: got a tensor that requires gradients; only its numbers are kept",
    ),
    "substeps of a step without time": (
        lambda: Static(max_substeps=16),
        "Static: has no time step to divide, got max_sub",
    ),
    "a run for its frames": (
        lambda: control.Table.recorded(run(), *curvatures()),
        r"Table.recorded: frames: expected .* torchdismech.runs.frames\(.* got Trajectory",
    ),
    "a run for what a movie shows": (
        lambda: save_movie(run(), "run.gif"),
        r"save_movie: scenery: expected .* view.scenery.Scenery\(trajectory\), got Trajectory",
    ),
    "a run for what is exported": (lambda: save_export(run(), "run.glb"), "save_export: scenery: .* got Trajectory"),
    "text for a tolerance": (lambda: ImplicitEuler(1e-3, force_tolerance="1e-9"), "force_tolerance: expected a number"),
    "trained weight of Newmark's": (
        lambda: Newmark(1e-3, beta=torch.tensor(0.25, requires_grad=True)),
        "Newmark: beta: got a tensor that requires gradients",
    ),
    "text for dt of a chain": (lambda: Radau("1e-3"), "dt: expected a number of seconds above 0, got '1e-3'"),
    "text for dt of an arm": (
        lambda: ArmIntegrator("1e-3"),
        "dt: expected a number of seconds above 0, got '1e-3'",
    ),
    "an integer beyond any float for dt": (
        lambda: ImplicitEuler(10**400),
        "dt: expected a number of seconds above 0, got 1000",
    ),
    "an integer beyond any float for a radius": (
        lambda: builder(Circle(10**400)),
        "Circle.radius: expected numbers, got 1000",
    ),
    "list for dt": (lambda: ImplicitEuler([1.0, 2.0]), "dt: expected a number of seconds above 0, got"),
    "text for a radius": (lambda: builder(Circle("a")), "Circle.radius: expected numbers, got 'a'"),
    "none for a modulus": (lambda: builder(material=Material(None, 1.0)), "Material.youngs: expected .* got None"),
    "a modulus of each robot": (
        lambda: builder(material=Material([1e6, 2e6], 1.0)).finalize(),
        r"one number for each robot is \(B, 1\)",
    ),
    "constants of unlike numbers of robots": (
        lambda: builder(material=Material(torch.full((8, 1), 1e6), 1.0), loads=[Gravity(torch.ones(16, 3))]).finalize(),
        "different numbers of robots: bend_twist.EI1 for 8, Gravity.acceleration for 16; give each",
    ),
    "edges of unlike numbers of nodes": (
        lambda: RobotBuilder().add_rods(ROW, [[0, 1], [1]], Circle(2e-3), Material(1e6, 1e3)),
        r"rod: expected edges of shape \(E, 2\)",
    ),
    "triangles of unlike numbers of nodes": (
        lambda: RobotBuilder().add_shell(ROW, [[0, 1, 2], [1]], 1e-3, Material(1e6, 1e3)),
        r"shell: expected triangles of shape \(F, 3\)",
    ),
    "springs of unlike numbers of nodes": (
        lambda: builder().set_spring_stiffness([[0, 1, 2], [1]], EI1=1.0),
        r"springs: expected the nodes of each, \(k, 3\)",
    ),
    "list of stiffnesses": (
        lambda: RobotBuilder().add_rod(ROW, Circle(2e-3), Material(1e6, 1e3), stiffness=[("EA", 1.0)]),
        "stiffness: expected numbers by name, .* got list",
    ),
    "stiffness of a number": (
        lambda: RobotBuilder().add_rod(ROW, Circle(2e-3), Material(1e6, 1e3), stiffness={1: 1.0}),
        "stiffness: expected any of EA, EI1, EI2, GJ, got 1$",
    ),
    "list for a whole": (
        lambda: RobotBuilder().add_rods(ROW, [[0, 1], [1, 2]], Circle(2e-3), Material(1e6, 1e3), whole=[1]),
        "whole: expected a number or a name, got list",
    ),
    "number for the name of a part": (
        lambda: builder().add_energy("stretch", LinearElastic({"EA": 1.0}), part=3),
        "add_energy: 3 cannot be the name of a part",
    ),
    "text for a time": (lambda: PointForce([0], (0, 0, 1), stop="late"), "PointForce.stop: expected a number"),
    "text for a flow": (lambda: Thrust(1.0, "slow"), "Thrust.smoothing: expected a flow above 0 m.3/s, got 'slow'"),
    "text for a place on edges": (lambda: OnEdges([0], at="end"), "OnEdges.at: expected 0 to 1, got 'end'"),
    "text for positions": (
        lambda: builder(loads=[Tendons([[AtNodes([0, 1]), Fixed("motor")]], tension=1.0)]).finalize(),
        "Fixed: positions: expected numbers, got 'motor'",
    ),
    "energies of no state": (lambda: builder().finalize().energies(None), "state: expected a state, .* got NoneType"),
    "strains of positions": (
        lambda: builder().finalize().strains(torch.zeros(1, 5, 3)),
        r"state: expected a state, such as model.initial_state\(\), got Tensor",
    ),
    "clamp of nothing": (lambda: RobotBuilder().clamp(nodes=[0]), "clamp.nodes: .*; add rods and shells first"),
    "device that is not there": (lambda: builder().finalize(device="cuda:77"), r"one that is there \(cpu"),
}


@pytest.mark.parametrize("name", MISUNDERSTOOD)
def test_what_is_something_else_is_named(name):
    """Say what was expected and what came."""
    call, message = MISUNDERSTOOD[name]
    with pytest.raises(InputError, match=message):
        call()


class Breaks(Force):
    """A force that is no number from some time on."""

    constant = True

    def forward(self, state, control):
        """Return the force."""
        return torch.where(state.time[:, None] > 2.5e-3, math.nan, 0.0) * torch.ones_like(state.q)


def test_a_run_in_which_a_robot_fails_says_so():
    """Warn at the end, and not where all is well, nor of robots that were not to be stepped."""
    model = builder(loads=[Breaks()]).finalize()
    state = model.initial_state()
    with pytest.warns(FailureWarning, match="rollout: robot 0: .*trajectory's status says why; or set throw=True"):
        found = rollout(model, state, ImplicitEuler(1e-3), 5)
    assert found.failed.tolist() == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FailureWarning)
        rollout(model, state, ImplicitEuler(1e-3), 2)
        rollout(model, state, ImplicitEuler(1e-3), 5, running=torch.tensor([False]))
