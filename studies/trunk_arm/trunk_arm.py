"""Fit an arm of tendons to recordings of a real one, then hang a payload on it that it has not seen.

    python -m studies.trunk_arm.trunk_arm --data FOLDER --out runs/trunk

The folder holds trunk_0g.npz, trunk_0g_other.npz and trunk_200g.npz: positions (T, 3, 3) of three discs [m], z up,
motor_angles (T, 6) [degrees], 100 Hz. They are recordings of the trunk robot of Stanford's Autonomous Systems Lab
(trunk-stack, MIT licence), and no part of this project.

The arm moves so slowly that it is nearly in equilibrium. So constants and learned pulls are fitted to moments: a
recording is cut into single frames, and each is compared with the equilibrium under its angles. The errors that are
reported are of simulations in time, open loop from the first angles on, over whole recordings. Only the first 120 s of
trunk_0g and all of trunk_0g_other are trained on. For trunk_200g the mass at the last disc is 0.2 kg more, and nothing
else is changed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from torchdismech import InputError
from training.config import load
from training.fitting import fit
from training.reports.evaluation import trained_system
from training.reports.predictions import predict_all

FOLDER = Path(__file__).parent
FILES = ("trunk_0g", "trunk_0g_other", "trunk_200g")
TRAINED, EVERY, MOMENT = 12000, 5, 20  # frames: of trunk_0g to train on; from step to step; from moment to moment
LAST_DISC = 0.06  # [kg] in scene.toml
PAYLOAD = 0.2  # [kg]


def recorded(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return positions (T, 3, 3) and motor angles (T, 6) of all recordings by name."""
    found = {}
    for name in FILES:
        if not (folder / f"{name}.npz").is_file():
            raise InputError(f"{folder}: no {name}.npz; expected {', '.join(f'{n}.npz' for n in FILES)}")
        with np.load(folder / f"{name}.npz") as archive:
            found[name] = {key: archive[key].astype(float) for key in ("positions", "motor_angles")}
    return found


def write_recordings(path: Path, recordings: dict[str, dict[str, np.ndarray]]) -> None:
    """Write moments to train on, each as three equal frames, and whole recordings to report on, at 20 Hz."""
    own, other, payload = (recordings[name] for name in FILES)

    def moments(key: str) -> np.ndarray:
        single = np.concatenate([own[key][:TRAINED:MOMENT], other[key][::MOMENT]])
        return np.repeat(single[:, None], 3, axis=1)

    def whole(recording: dict[str, np.ndarray], key: str) -> np.ndarray:
        return recording[key][None, ::EVERY]

    np.savez(
        path,
        dt=0.01 * EVERY,
        train=moments("positions"),
        train_motor=moments("motor_angles"),
        alone=whole(own, "positions"),
        alone_motor=whole(own, "motor_angles"),
        payload=whole(payload, "positions"),
        payload_motor=whole(payload, "motor_angles"),
    )


def predicted(run: Path, split: str, mass: float = LAST_DISC, weights: str = "best") -> np.ndarray:
    """Return the predicted discs (T, 3, 3) [m] in all frames of a recording, open loop, with a `mass` [kg] at the last.

    The first frames, up to the first step, are not predicted: they are NaN.
    """
    settings = [f"data.eval={split}", f'robot.overrides={{"mass.1.add" = {mass}}}']
    system, recordings, _ = trained_system(run, settings, weights, allow_code=True)
    with torch.no_grad():
        found = predict_all(system, recordings)
    if not bool(found.good.all()):
        raise InputError(f"{split}: a step of the prediction failed")
    steps = EVERY * np.arange(1, recordings.frames)
    frames = np.arange(steps[-1] + 1)
    columns = found.positions[0].flatten(1).T.numpy()
    between = [np.interp(frames, steps, column, left=np.nan) for column in columns]
    return np.stack(between, axis=1).reshape(-1, 3, 3)


def report(run: Path, recordings: dict[str, dict[str, np.ndarray]], weights: str = "best") -> dict[str, float]:
    """Print and return errors [m]: of the last 30 s of trunk_0g, and of all of trunk_200g."""
    cases = {
        "0 g, last 30 s": ("trunk_0g", predicted(run, "alone", weights=weights), TRAINED),
        "200 g": ("trunk_200g", predicted(run, "payload", LAST_DISC + PAYLOAD, weights), EVERY),
    }
    errors = {}
    for name, (recording, discs, first) in cases.items():
        measured = recordings[recording]["positions"]
        off = np.abs(discs - measured[: len(discs)])[first:]
        stays = np.abs(measured[first:] - measured[0])
        errors[name] = float(off.mean())
        per_disc = ", ".join(f"{1e3 * error:.2f}" for error in off.mean((0, 2)))
        print(f"{name:15} {1e3 * off.mean():.2f} mm (discs {per_disc}); discs that stay: {1e3 * stays.mean():.2f} mm")
    return errors


def main(data: Path, out: Path, settings: list[str]) -> dict[str, float]:
    """Fit and report; the run is in the folder `out`/run."""
    recordings = recorded(data)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "recordings.npz"
    write_recordings(path, recordings)
    fit(load(FOLDER / "fit.toml", [f"data.path={path}", *settings]), out / "run", allow_code=True)
    return report(out / "run", recordings)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the three recordings")
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings that are made, and the run")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="change a field of fit.toml")
    arguments = parser.parse_args()
    main(arguments.data, arguments.out, arguments.settings)
