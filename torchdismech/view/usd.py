"""Runs as USD: surfaces whose points are sampled over time, for Blender, Omniverse and Houdini."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from torchdismech.errors import InputError
from torchdismech.view.scenery import Scenery, Shown

__all__ = ["write_usd"]

RATE = 1000  # time codes per second: a time code is a millisecond


def write_usd(scenery: Scenery, path: Path, progress: Callable[[Iterable[Shown]], Iterable[Shown]]) -> None:
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
        made = UsdGeom.Mesh.Define(stage, f"/run/{name}")
        made.CreateFaceVertexCountsAttr(Vt.IntArray.FromNumpy(np.full(len(faces), 3, dtype=np.int32)))
        made.CreateFaceVertexIndicesAttr(Vt.IntArray.FromNumpy(faces.ravel().astype(np.int32)))
        made.CreateSubdivisionSchemeAttr(UsdGeom.Tokens.none)
        made.CreateDoubleSidedAttr(True)
        made.SetNormalsInterpolation(UsdGeom.Tokens.vertex)
        UsdGeom.PrimvarsAPI(made).CreatePrimvar("displayColor", Sdf.ValueTypeNames.Color3fArray, UsdGeom.Tokens.vertex)
        return made

    def place(made: Any, vertices: np.ndarray, normals: np.ndarray, colours: np.ndarray, time: Any) -> None:
        linear = (colours / 255.0) ** 2.2  # colours of USD are linear in light
        for attribute, values in (
            (made.GetPointsAttr(), vertices),
            (made.GetNormalsAttr(), normals),
            (made.GetDisplayColorAttr(), linear),
        ):
            attribute.Set(Vt.Vec3fArray.FromNumpy(np.ascontiguousarray(values, dtype=np.float32)), time)

    robots = [mesh(f"robot_{robot}", scenery.surface.faces) for robot in scenery.robots]
    for shown in progress(scenery):
        for k, made in enumerate(robots):
            place(made, shown.vertices[k], shown.normals[k], shown.colours[k], RATE * shown.time)
    for k, placed in enumerate(scenery.obstacles):
        own = placed.surface
        made = mesh(f"obstacle_{k}", own.faces)
        place(made, own.vertices, own.normals, own.colours, Usd.TimeCode.Default())
        move = made.AddTranslateOp()
        ways = placed.offset + own.displacements(scenery.times)
        for time, way in zip(scenery.times if own.moves else scenery.times[:1], ways, strict=False):
            move.Set(tuple(float(x) for x in way), RATE * float(time) if own.moves else Usd.TimeCode.Default())
    stage.GetRootLayer().Save()
