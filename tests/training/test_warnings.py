"""Whether recordings can be of the robot at all: what is refused before a fit, and warned of before and after it."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from tests.training.beams import system_of, tables, window_of
from torchdismech import InputError
from training.config import Config
from training.data import read
from training.fitting import fit
from training.reports.metrics import Errors, beside_references
from training.reports.warnings_after import warning_of_residuals_above_noise, warning_of_unchanged_weights
from training.reports.warnings_before import (
    warning_of_coarse_units,
    warning_of_distant_markers,
    warning_of_times_in_another_unit,
)

FRAME = {"tensors": ["markers.position"], "kind": "shift", "unit": 0.1, "per": "element"}


def of_beam(folder, shift=(0.0, 0.0, 0.0), order=None):
    """Return the recordings of the beam of 0.3 m, all moved, with their markers in another order."""
    recordings = read(folder / "beam.npz", "train")
    moved = recordings.positions + torch.tensor(shift, dtype=torch.float64)
    return dataclasses.replace(recordings, positions=moved if order is None else moved[:, :, order])


def test_markers_that_begin_elsewhere_are_refused_or_warned_of(folder):
    """Refuse what no fit brings together; warn of what may be meant; say nothing of what fits."""
    system = system_of(folder)
    assert warning_of_distant_markers(system, of_beam(folder)) is None
    with pytest.raises(InputError, match=r"marker \d is 0.5 m from its point of the robot in frame 0.* 0.3 m large"):
        warning_of_distant_markers(system, of_beam(folder, (0.5, 0.0, 0.0)))
    told = warning_of_distant_markers(system, of_beam(folder, order=[3, 2, 1, 0]))
    assert told is not None and "marker 0 is 0.3 m from" in told and "order of the markers" in told
    framed = system_of(folder, constants={"frame": FRAME})
    told = warning_of_distant_markers(framed, of_beam(folder, (0.5, 0.0, 0.0)))
    assert told is not None and "0.5 m" in told


def test_units_of_shifts_that_are_far_too_large_are_warned_of(folder):
    """Name the constant, its size and a unit; a drag of 0.05 is not moved by steps of tenths."""
    drag = {"tensors": ["Viscous.viscosity"], "kind": "shift", "unit": 10.0}
    told = warning_of_coarse_units(system_of(folder, constants={"drag": drag}))
    assert told is not None and "constants.drag: its unit, 10, is large beside the constant, 0.05" in told
    assert "a unit such as 0.005" in told
    assert warning_of_coarse_units(system_of(folder, constants={"drag": {**drag, "unit": 0.1}})) is None
    curvature = {"tensors": ["bend_twist.natural_kappa1"], "kind": "shift", "unit": 10.0}
    assert warning_of_coarse_units(system_of(folder, constants={"rest": curvature})) is None  # it may have any sign


@pytest.mark.parametrize(("scale", "warned"), [(1e-3, "2.5 times"), (2e-3, None), (None, "the default")])
def test_residuals_beyond_the_noise_are_warned_of(folder, scale, warned):
    """Say by how much, and what that may mean; twice the noise is none of it."""
    given = {} if scale is None else {"loss": {"scale": scale}}
    config = Config.model_validate(tables(folder, **given))
    off = torch.full((3,), 2e-3)  # mean absolute: a standard deviation of 2.5 mm
    errors = Errors(off, off, torch.ones(3, dtype=torch.bool), 0.01, 0.01)
    told = warning_of_residuals_above_noise(config, errors)
    if warned is None:
        assert told is None
        return
    assert told is not None and "residuals are 2.51 mm" in told and warned in told and "left out of [constants]" in told
    lost = Errors(off, off * torch.inf, torch.zeros(3, dtype=torch.bool), 0.01, 0.01)
    assert warning_of_residuals_above_noise(config, lost) is None


def test_learned_terms_are_advised_only_where_there_are_none(folder):
    """Name another network where the fit has one already."""
    off = torch.full((3,), 9e-3)
    errors = Errors(off, off, torch.ones(3, dtype=torch.bool), 0.01, 0.01)
    terms = {"law": {"kind": "energy", "network": "ConvexEnergy"}}
    plain, learned = (Config.model_validate(tables(folder, **more)) for more in ({}, {"terms": terms}))
    assert warning_of_residuals_above_noise(plain, errors).endswith("or learned [terms]")
    assert warning_of_residuals_above_noise(learned, errors).endswith("or another network in [terms]")


def test_errors_say_that_they_are_of_coordinates():
    """A distance is up to the root of three times as large, and warnings print distances beside the error."""
    off = torch.full((3,), 9e-3)
    errors = Errors(off, off, torch.ones(3, dtype=torch.bool), 0.01, 0.01)
    assert beside_references(errors, {}) == "9.00 mm a coordinate"


def test_times_in_milliseconds_are_warned_of(folder):
    """Name the times, how many steps a frame they take, and the unit that they look like."""
    config = Config.model_validate(tables(folder))
    slow = system_of(folder)
    slow.substeps = 2000
    late = dataclasses.replace(of_beam(folder), dt=10.0)
    told = warning_of_times_in_another_unit(config, slow, late)
    assert told is not None and "dt: frames are 10 s apart" in told and "2000 steps of 0.005 s" in told
    assert "milliseconds" in told
    assert warning_of_times_in_another_unit(config, system_of(folder), of_beam(folder)) is None


def test_fit_is_told_beside_markers_that_stay(folder, capsys):
    """Warn, in the end, of a fit to markers in reverse order: it is worse than no motion, and off by half a robot."""
    data = {"path": str(folder / "beam.npz"), "held_out": 0.0, "eval": None}
    reverse = {"nodes": [3, 2, 1, 0]}
    fit(Config.model_validate(tables(folder, data=data, markers=reverse)), folder / "run")
    said = capsys.readouterr().out
    assert "from its point of the robot in frame 0" in said
    assert "of the robot's size: this is no fit" in said
    assert "predicts no better than markers that stay where they were first" in said
    assert "(of markers that stay where they were first " in said
    assert "the noise of the markers" not in said  # there is worse to be said
    assert len(json.loads((folder / "run" / "metrics.json").read_text())["warnings"]) == 2


def test_fit_that_ends_as_it_began_says_so(folder, capsys):
    """Hold out what the guess predicts, train on others: warn of it, blame no convergence, show what it ends with."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    steps = {"method": "gauss_newton", "iterations": 4, "horizon": [5], "batch": 2, "train": ["constants"], "name": "c"}
    config = Config.model_validate(tables(folder, stages=[steps], logging={"every": 1}))
    system, recordings = system_of(folder), read(folder / "beam.npz", "train")
    trained_on, held_out = recordings.split(config.data.held_out, config.seed)
    bending, every = system.entries["bending"], window_of(folder, recordings.frames)
    positions = recordings.positions.clone()
    for names, stiffer in ((held_out.names, 0.0), (trained_on.names, 0.7)):
        bending.parameter.data.fill_(stiffer)
        rows = [recordings.names.index(name) for name in names]
        positions[rows, 1:] = system.predict(every).positions.detach()[rows]
    np.savez(folder / "beam.npz", train=positions.numpy(), dt=recordings.dt)
    fit(config, folder / "run")
    said, facts = capsys.readouterr().out, json.loads((folder / "run" / "metrics.json").read_text())
    told = f"so all {facts['batches']} are left out: these recordings do not agree with those trained on"
    assert facts["best_batch"] == 0 < facts["batches"]
    assert len(facts["warnings"]) == 1 and told in facts["warnings"][0] and told in said
    assert f"its weights are those after batch 0 of {facts['batches']}" in said and "train longer" not in said
    events = EventAccumulator(str(folder / "run")).Reload()
    guess = 4e6 * math.pi / 4 * 4e-3**4  # N m^2, of the scene
    assert events.Scalars("final/physics/bending")[-1].value == pytest.approx(guess, rel=1e-6)  # single precision
    assert events.Scalars("physics/bending")[-1].value > 1.5 * guess  # e^0.7 = 2 times
    assert warning_of_unchanged_weights(config, 0, 0) is None and warning_of_unchanged_weights(config, 4, 1) is None


def test_rules_are_named_as_in_the_config(folder):
    """Name the key of the config where recordings break a rule."""
    np.savez(folder / "beam.npz", train=1e3 * read(folder / "beam.npz", "train").positions.numpy(), dt=0.01)
    with pytest.raises(InputError, match=r"set data\.rules\.unit_scale='repair'"):
        fit(Config.model_validate(tables(folder)), folder / "run")
