"""Figures of energies and contacts."""

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.view.runs import run_of, twisting
from torchdismech import InputError, Trajectory
from torchdismech.cli import app
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
    """Call the sum so, as of chains of rigid elements."""
    run = Trajectory.load(run_of(tmp_path))
    run.energies = {**run.energies, "gravity": run.energies["kinetic"]}
    (plot,) = draw_curves(run, 2).axes
    labels = [line.get_label() for line in plot.get_lines()]
    assert labels[-1] == "sum"


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
