"""Runs as USD: surfaces whose points are sampled over time, for Blender, Omniverse and Houdini."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from torchdismech.errors import InputError
from torchdismech.view.scenery import Scenery, Shown

__all__ = ["write_usd"]

RATE = 1000  # time codes per second: a time code is a millisecond


def write_usd(scenery: Scenery, path: Path, frames: Iterable[Shown]) -> None:
    """Write robots and obstacles as meshes with points, normals and colours at the times of the frames."""
    try:
        from pxr import Sdf, Usd, UsdGeom, Vt
    except ImportError as error:
        raise InputError("files of USD need usd-core: pip install 'torchdismech[export]'") from error
    stage = Usd.Stage.CreateNew(str(path))
    UsdGeom.SetStageUpAxis(stage, UsdGeom.Tokens.z)
    UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    stage.SetTimeCodesPerSecond(RATE)
    stage.SetStartTimeCode(RATE * float(scenery.times[0]))
    stage.SetEndTimeCode(RATE * float(scenery.times[-1]))
    stage.SetDefaultPrim(UsdGeom.Xform.Define(stage, "/run").GetPrim())

    def mesh(name: str, faces: np.ndarray) -> Any:
        prim = UsdGeom.Mesh.Define(stage, f"/run/{name}")
        prim.CreateFaceVertexCountsAttr(Vt.IntArray.FromNumpy(np.full(len(faces), 3, dtype=np.int32)))
        prim.CreateFaceVertexIndicesAttr(Vt.IntArray.FromNumpy(faces.ravel().astype(np.int32)))
        prim.CreateSubdivisionSchemeAttr(UsdGeom.Tokens.none)
        prim.CreateDoubleSidedAttr(True)
        prim.SetNormalsInterpolation(UsdGeom.Tokens.vertex)
        UsdGeom.PrimvarsAPI(prim).CreatePrimvar("displayColor", Sdf.ValueTypeNames.Color3fArray, UsdGeom.Tokens.vertex)
        return prim

    def place(prim: Any, vertices: np.ndarray, normals: np.ndarray, colours: np.ndarray, time: Any) -> None:
        linear = (colours / 255.0) ** 2.2  # colours of USD are linear in light
        for attribute, values in (
            (prim.GetPointsAttr(), vertices),
            (prim.GetNormalsAttr(), normals),
            (prim.GetDisplayColorAttr(), linear),
        ):
            attribute.Set(Vt.Vec3fArray.FromNumpy(np.ascontiguousarray(values, dtype=np.float32)), time)

    robots = [mesh(f"robot_{robot}", scenery.surface.faces) for robot in scenery.robots]
    for shown in frames:
        for k, prim in enumerate(robots):
            place(prim, shown.vertices[k], shown.normals[k], shown.colours[k], RATE * shown.time)
    for k, placed in enumerate(scenery.obstacles):
        surface = placed.surface
        prim = mesh(f"obstacle_{k}", surface.faces)
        place(prim, surface.vertices, surface.normals, surface.colours, Usd.TimeCode.Default())
        move = prim.AddTranslateOp()
        shifts = placed.offset + surface.displacements(scenery.times)
        for time, shift in zip(scenery.times if surface.moves else scenery.times[:1], shifts, strict=False):
            move.Set(tuple(float(x) for x in shift), RATE * float(time) if surface.moves else Usd.TimeCode.Default())
    stage.GetRootLayer().Save()
