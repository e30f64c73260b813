"""Figures of energies and contacts."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.view.runs import run_of, twisting
from torchdismech import InputError, Trajectory, rollout
from torchdismech.cli import app
from torchdismech.rigid import Radau, RigidChain
from torchdismech.view import draw_curves

pytest.importorskip("matplotlib")


def test_energies_and_their_sum_are_drawn(tmp_path):
    """Draw what the file holds of the robot, with units, over time; contacts below it."""
    run = Trajectory.load(run_of(tmp_path))
    plots = draw_curves(run, 2, energies=True, contact=True).axes
    assert [plot.get_ylabel() for plot in plots] == ["energy [J]", "contacts", "overlap [m]", "force [N]", "load [N]"]
    lines = {line.get_label(): line.get_ydata() for line in plots[0].get_lines()}
    assert lines.keys() == {*run.energies, "sum (without loads)"}  # of gravity, which acts on it, there is no energy
    assert np.array_equal(lines["kinetic"], run.energies["kinetic"][:, 2])
    assert np.allclose(lines["sum (without loads)"], sum(energy[:, 2] for energy in run.energies.values()))
    force = next(line for line in plots[3].get_lines() if line.get_label() == "floor").get_ydata()
    assert np.allclose(force, run.contact["force/floor"][:, 2].norm(dim=-1))
    load = next(line for line in plots[4].get_lines() if line.get_label() == "floor").get_ydata()
    assert np.array_equal(load, run.contact["load/floor"][:, 2])
    assert plots[-1].get_xlabel() == "time [s]"


def test_the_sum_is_all_where_gravity_has_an_energy(tmp_path):
    """Call the sum so of chains of rigid elements, and not of rods that touch something called gravity."""
    chain = RigidChain([0.1, 0.1], [1.0, 1.0], [0.05, 0.05], [1e-3, 1e-3], [1.0])
    run = rollout(chain, chain.initial_state(), Radau(1e-3), 2)
    rods = Trajectory.load(run_of(tmp_path))
    rods.energies = {**rods.energies, "gravity": rods.energies["kinetic"]}
    for shown, name in ((run, "sum"), (rods, "sum (without loads)")):
        (plot,) = draw_curves(shown).axes
        assert plot.get_lines()[-1].get_label() == name


def test_strains_have_units_and_those_that_are_zero_are_left_out():
    """Draw strains with their units, in a figure that is not endlessly tall; name those that are zero throughout."""
    run, _ = twisting()
    moving = 1.0 + torch.arange(2.0 * len(run.time)).view(-1, 2, 1).double().repeat(1, 1, 3)
    run.strains = {"stretch": moving, "kappa2": 0 * moving, "curvature11": moving, "hinge_angle": moving}
    figure = draw_curves(run, 1, energies=False, strains=True)
    labels = [plot.get_ylabel() for plot in figure.axes]
    assert labels == ["stretch [1]", "curvature11 [1/m]", "hinge_angle [rad]"]
    assert figure.get_suptitle() == "robot 1 of 0 to 1; zero throughout: kappa2"
    run.strains = {f"strain{k}": moving for k in range(15)}
    figure = draw_curves(run, 1, energies=False, strains=True)
    assert len(figure.axes) == 15 and figure.get_figheight() < 20
    assert sum(plot.get_xlabel() == "time [s]" for plot in figure.axes) == 3
    run.strains = {"stretch": 0 * moving}
    assert len(draw_curves(run, 0, energies=False, strains=True).axes) == 1


def test_runs_without_contact_are_refused():
    """Say that nothing can touch; name robots that are not there."""
    run, _ = twisting()
    with pytest.raises(InputError, match="--contact: nothing can touch in this run"):
        draw_curves(run, contact=True)
    with pytest.raises(InputError, match="robot: expected a number 0 to 1"):
        draw_curves(run, 2)


def test_the_command_draws_them(tmp_path):
    """Write the figure; refuse options that would be ignored."""
    run = str(run_of(tmp_path))
    result = CliRunner().invoke(app, ["plot", run, "--energies", "--contact"])
    assert result.exit_code == 0 and (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG"), result.output
    result = CliRunner().invoke(app, ["plot", run, "--energies", "--node", "2", "--overwrite"])
    assert result.exit_code == 2 and "--node and --snapshots do not apply" in result.stderr
