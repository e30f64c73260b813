"""Strains of rods and shells, stored with the frames of a run."""

import copy
import pickle

import h5py
import pytest
import torch
from typer.testing import CliRunner

from tests.trajectory.runs import ran
from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, Trajectory, forces, rollout
from torchdismech.cli import app
from torchdismech.io.run import run_scene
from torchdismech.io.scene import load_scene
from torchdismech.rigid import Radau, RigidChain

SCENE = """
[robot]
nodes = [[0, 0, 0], [0.1, 0, 0], [0.2, 0, 0], [1, 0, 0], [1.1, 0, 0], [1, 0.1, 0], [1.1, 0.1, 0]]
rod_edges = [[0, 1], [1, 2]]
triangles = [[3, 4, 5], [4, 6, 5]]
[rod]
section = {shape = "circle", radius = 1e-3}
youngs = 1e6
density = 1000.0
[shell]
thickness = 1e-3
youngs = 1e6
density = 1000.0
bending = "midedge"
membrane = "continuum"
[[clamp]]
nodes = [0]
direction = "rest"
[environment]
gravity = [0, 0, -9.81]
[simulation]
dt = 0.01
duration = 0.04
[output]
every = 2
strains = true
[batch]
size = 2
"""
NUMBERS = ("stretch", "kappa1", "kappa2", "membrane11", "membrane22", "membrane12")
UNITS = dict.fromkeys(NUMBERS, "1") | {"tau": "rad"} | {f"curvature{k}": "1/m" for k in (11, 22, 12)}


def test_files_hold_the_strains_of_each_frame(scene, tmp_path):
    """Find in the file, with units, what the model says of each state."""
    stored, model = ran(scene, tmp_path / "run.h5"), load_scene(scene).build().model
    setup = load_scene(scene).build()
    expected = rollout(setup.model, setup.state, setup.integrator, 4, every=2, strains=True)
    assert stored.strains.keys() == expected.strains.keys() == UNITS.keys()
    for name, values in expected.strains.items():
        assert torch.equal(stored.strains[name], values), name
        assert torch.equal(values[-1], model.strains(expected.state)[name]), name
        assert values.shape[:2] == (3, 2)
    assert all(not torch.equal(stored.strains[k][0], stored.strains[k][-1]) for k in ("kappa1", "stretch"))
    with h5py.File(tmp_path / "run.h5") as file:
        assert {name: file[f"strain/{name}"].attrs["units"] for name in UNITS} == UNITS
    part = stored.frames(slice(1, 2))
    part.save(tmp_path / "part.h5")
    again = Trajectory.load(tmp_path / "part.h5")
    assert torch.equal(again.strains["kappa1"], expected.strains["kappa1"][1:2])


def test_runs_without_strains_have_none(scene, tmp_path):
    """Store none where nobody asks, and go on with such a run only as it was."""
    stored = ran(scene, tmp_path / "run.h5", output__strains=False, simulation__duration=0.02)
    assert stored.strains == {}
    asked = load_scene(scene)
    with pytest.raises(InputError, match="output.strains was False and is True"):
        run_scene(asked, asked.build(), tmp_path / "run.h5", resume=tmp_path / "run.h5")
    with pytest.raises(InputError, match="stores the strains none, and .* has curvature11"):
        run_scene(asked, asked.build(), tmp_path / "run.h5", resume=tmp_path / "run.h5", force_resume=True)


def test_resumed_runs_have_all_strains(scene, tmp_path):
    """Go on with a run: its strains are those of a run without a cut."""
    whole = ran(scene, tmp_path / "whole.h5")
    ran(scene, tmp_path / "run.h5", simulation__duration=0.02)
    asked = load_scene(scene)
    resumed, _ = run_scene(asked, asked.build(), tmp_path / "run.h5", resume=tmp_path / "run.h5")
    for name, values in whole.strains.items():
        assert torch.equal(resumed.strains[name], values), name


def test_damage_shows(scene, tmp_path):
    """Refuse a file with a flipped strain."""
    ran(scene, tmp_path / "run.h5")
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        file["strain/kappa1"][1, 0, 0] += 1e-9
    with pytest.raises(InputError, match="strain/kappa1"):
        Trajectory.load(tmp_path / "run.h5")


def test_strains_are_drawn_or_missed_in_one_line(scene, tmp_path):
    """Draw curves of strains; say how scenes and Python ask for them where a run has none."""
    ran(scene, tmp_path / "run.h5")
    drawn = CliRunner().invoke(app, ["plot", str(tmp_path / "run.h5"), "--strains"])
    assert drawn.exit_code == 0 and (tmp_path / "run.png").stat().st_size > 10_000
    ran(scene, tmp_path / "none.h5", output__strains=False)
    missed = CliRunner().invoke(app, ["plot", str(tmp_path / "none.h5"), "--strains"])
    assert missed.exit_code == 2 and "--strains: the run has none" in missed.output
    assert all(way in " ".join(missed.output.split()) for way in ("strains = true", "rollout(..., strains=True)"))


def test_parts_of_a_batch_have_the_strains_of_the_whole():
    """Find each robot's strains beside others of other sizes as alone."""
    radius = torch.tensor([[1e-3], [2e-3], [3e-3]], dtype=torch.float64)

    def run(radius):
        builder = RobotBuilder()
        builder.add_rod([[0.0, 0, 0], [0.1, 0, 0], [0.2, 0, 0]], Circle(radius), Material(1e6, 1e3))
        builder.clamp(nodes=[0, 1])
        builder.add_force(forces.Gravity([0, 0, -9.81]))
        model = builder.finalize()
        return rollout(model, model.initial_state(), ImplicitEuler(0.01), 3, strains=True).strains

    together = run(radius)
    for robot in range(3):
        for name, values in run(radius[robot : robot + 1]).items():
            # 1e-12: bits depend on the number of robots
            torch.testing.assert_close(values[:, 0], together[name][:, robot], rtol=0, atol=1e-12)


def test_chains_have_no_strains():
    """Refuse to store what chains of rigid elements do not have."""
    chain = RigidChain.cylinder(2, length=1.2, diameter=6e-3, density=2710.0, youngs=1e10, viscosity=1e9)
    with pytest.raises(InputError, match="RigidChain has none"):
        rollout(chain, chain.initial_state(), Radau(0.01), 1, strains=True)


def test_names_that_are_not_stored_are_answered_with_those_that_are():
    """Say that strains have to be asked for, and which there are; pickled and copied runs say so, too."""
    builder = RobotBuilder()
    builder.add_rod([[0.0, 0, 0], [0.1, 0, 0], [0.2, 0, 0]], Circle(1e-3), Material(1e6, 1000.0))
    model = builder.finalize(compile=False)
    without, with_strains = (
        rollout(model, model.initial_state(), ImplicitEuler(1e-3), 2, strains=strains) for strains in (False, True)
    )
    with pytest.raises(KeyError, match=r"strains: no 'kappa1': the run has none; .* rollout\(\.\.\., strains=True\)"):
        without.strains["kappa1"]
    for run in (with_strains, pickle.loads(pickle.dumps(with_strains)), copy.deepcopy(with_strains)):
        assert run.strains["kappa1"].shape == (3, 1, 1)
        with pytest.raises(KeyError, match="strains: no 'kapa1': there are stretch, kappa1, kappa2, tau"):
            run.strains["kapa1"]
