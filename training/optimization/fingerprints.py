"""Checksums of the files that decide the result of a fit: its scene, files that this names, Python of the user's."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torchdismech import InputError
from torchdismech.io.scene import load_scene
from training.config import Config
from training.config.scene import SceneRobot

__all__ = ["fingerprints"]


def fingerprints(config: Config) -> dict[str, str]:
    """Return the SHA-256 of each file by the key of the config that names it.

    Recordings are not among them: `Recordings.digests` has checksums of their numbers.
    """
    found = {}
    if isinstance(config.robot, SceneRobot):
        scene = load_scene(config.robot.scene, config.robot.overrides, steps=1, insist=True)
        found["robot.scene"] = hashlib.sha256(scene.text.encode()).hexdigest()
        found |= {f"robot.scene: {key}": digest for key, digest in scene.fingerprints.items()}
    modules = {f"drives.{name}.module": drive.module for name, drive in config.drives.items()}
    networks = {f"terms.{name}.network": term.code for name, term in config.terms.items()}
    for key, code in {"system": config.system, **modules, **networks}.items():
        if code is not None:
            found[key] = _digest(key, Path(code.rpartition(":")[0]))
    return found


def _digest(key: str, path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{key}: {path} cannot be read: {error.strerror or error}") from error
