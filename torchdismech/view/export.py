"""Runs for other programs: glTF for Blender and browsers, USD, VTK for ParaView, and tables."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from torchdismech.errors import InputError, path_of, refuse_other_kind, truth
from torchdismech.io.outputs import begins_with, refuse_no_place, replacing
from torchdismech.view.gltf import write_glb
from torchdismech.view.scenery import Scenery, with_bar
from torchdismech.view.table import HEADER, write_table
from torchdismech.view.usd import write_usd
from torchdismech.view.vtk import folder_of, write_vtk

__all__ = ["is_export", "save_export"]

WRITERS = {".glb": write_glb, ".usda": write_usd, ".usdc": write_usd, ".pvd": write_vtk, ".csv": write_table}
BEGINNINGS = {".glb": b"glTF", ".usda": b"#usda", ".usdc": b"PXR-USDC", ".pvd": b"<?xml", ".csv": HEADER.encode()}


def save_export(scenery: Scenery, path: str | Path, progress: bool = False) -> None:
    """Write a run for another program; if it is stopped half-way, no file is left.

    Parameters
    ----------
    scenery : what is written, `Scenery(trajectory)` of a run.
    path : its ending says the format. ".glb": the surfaces, animated. ".usda", ".usdc": the same, as text or binary.
        ".pvd": a list of files, one for each frame, in a folder beside it: nodes, rod edges and triangles with values.
        ".csv": a table of one robot's nodes over time.
    progress : show a progress bar.

    Raises
    ------
    InputError
        No scenery, another ending, no such folder, a missing package, a file that cannot be written; a table of several
        robots.
    """
    refuse_other_kind(
        "save_export: scenery", scenery, Scenery, "what is shown of a run, view.scenery.Scenery(trajectory)"
    )
    path = path_of(path, "save_export")
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        endings = ".glb, .usda, .usdc, .pvd (a series of .vtu) or .csv"
        raise InputError(f"--out {path}: expected a name that ends in {endings}")
    refuse_no_place(path)
    progress = truth(progress, "save_export: progress")
    with replacing(path) as part:
        writer(scenery, part, with_bar(scenery, len(scenery), path.name) if progress else scenery)
        if folder_of(part).is_dir():
            _replace_series(folder_of(part), folder_of(path))


def _replace_series(new: Path, folder: Path) -> None:
    """Move a new folder of .vtu files to the place of an earlier one; refuse to if that holds anything else."""
    if folder.exists():
        if not folder.is_dir() or any(file.suffix != ".vtu" for file in folder.iterdir()):
            raise InputError(f"--out: {folder} holds other things than .vtu files: choose another name")
        shutil.rmtree(folder)
    os.replace(new, folder)


def is_export(path: Path) -> bool:
    """Return whether a file begins with the bytes of the format that its name's ending says."""
    return begins_with(path, BEGINNINGS.get(path.suffix.lower()))
