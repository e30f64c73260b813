"""Runs for ParaView: a file of VTK's XML format (.vtu) for each frame, and a list of them with their times (.pvd)."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np

from torchdismech.view.colours import quantities_of
from torchdismech.view.scenery import Scenery, Shown

__all__ = ["folder_of", "write_vtk"]

LINE, TRIANGLE = 3, 5  # VTK's codes of these types of cells
TYPES = {"float32": "Float32", "float64": "Float64", "int64": "Int64", "uint8": "UInt8"}


def folder_of(path: Path) -> Path:
    """Return the folder of the frames that a .pvd file lists."""
    return path.with_name(f"{path.stem}_frames")


def write_vtk(scenery: Scenery, path: Path, frames: Iterable[Shown]) -> None:
    """Write the list of frames (.pvd) and, in a folder beside it, a .vtu file for each frame.

    A frame has the nodes of the robots as points, and rod edges (lines) and triangles as cells. Point data are the
    velocity [m/s] and the quantities of `colours.node_values`, NaN where there is none; cell data the robot's number
    and the mean radius of rods [m], 0 for triangles; field data the number and the energies [J] of each robot.
    """
    folder = folder_of(path)
    folder.mkdir()
    cells = _cells(scenery)
    entries = []
    for k, shown in enumerate(frames):
        name = f"{path.stem}_{k:06d}.vtu"
        (folder / name).write_text(_grid(scenery, k, shown, cells), encoding="utf-8")
        file = quoteattr(f"{folder.name}/{name}")
        entries.append(f'<DataSet timestep="{shown.time!r}" part="0" file={file}/>')
    lines = "\n".join(entries)
    path.write_text(
        f'<?xml version="1.0"?>\n<VTKFile type="Collection" version="1.0">\n<Collection>\n{lines}\n</Collection>\n'
        "</VTKFile>\n",
        encoding="utf-8",
    )


def _cells(scenery: Scenery) -> tuple[str, str]:
    """Return the XML elements Cells and CellData, which are the same in all frames."""
    run, count = scenery.trajectory, len(scenery.robots)
    nodes, edges, triangles = run.positions.shape[2], run.rod_edges, run.triangles
    shift = nodes * np.arange(count)[:, None, None]
    lines, faces = (edges + shift).reshape(-1, 2), (triangles + shift).reshape(-1, 3)
    sizes = np.repeat([2, 3], [len(lines), len(faces)])
    radius = np.concatenate([scenery.half.mean(-1).ravel(), np.zeros(len(faces))])
    robot = np.concatenate([np.repeat(scenery.robots, len(e)) for e in (edges, triangles)])
    arrays = {
        "connectivity": np.concatenate([lines.ravel(), faces.ravel()]),
        "offsets": np.cumsum(sizes),
        "types": np.repeat([LINE, TRIANGLE], [len(lines), len(faces)]).astype(np.uint8),
    }
    return _element("Cells", arrays), _element("CellData", {"robot": robot, "radius": radius})


def _grid(scenery: Scenery, index: int, shown: Shown, cells: tuple[str, str]) -> str:
    """Return the text of the .vtu file of a frame; `index` is its place among the scenery's frames."""
    run, robots = scenery.trajectory, scenery.robots
    points = (run.positions[shown.row].numpy()[robots] + scenery.offsets[:, None]).reshape(-1, 3)
    values = {"velocity": run.velocities[shown.row].numpy()[robots].reshape(-1, 3)}
    for name in quantities_of(run):
        values[name] = scenery.values(name, slice(index, index + 1))[0].ravel()
    field = {f"energy of {name}": energy[shown.row].numpy()[robots] for name, energy in run.energies.items()}
    count = sum(len(robots) * len(elements) for elements in (run.rod_edges, run.triangles))
    return (
        '<?xml version="1.0"?>\n'
        '<VTKFile type="UnstructuredGrid" version="1.0" byte_order="LittleEndian" header_type="UInt64">\n'
        f"<UnstructuredGrid>\n{_element('FieldData', {'robot': robots, **field}, tuples=True)}\n"
        f'<Piece NumberOfPoints="{len(points)}" NumberOfCells="{count}">\n{_element("Points", {"points": points})}\n'
        f"{cells[0]}\n{_element('PointData', values)}\n{cells[1]}\n</Piece>\n</UnstructuredGrid>\n</VTKFile>\n"
    )


def _element(name: str, arrays: Mapping[str, np.ndarray], tuples: bool = False) -> str:
    """Return an XML element with arrays (n,) or (n, 3), each in base64: the number of its bytes, then the bytes."""
    lines = []
    for what, array in arrays.items():
        values = np.ascontiguousarray(array)
        content = values.astype(values.dtype.newbyteorder("<")).tobytes()
        text = base64.b64encode(np.array(len(content), dtype="<u8").tobytes() + content).decode()
        size = f' NumberOfTuples="{len(values)}"' if tuples else ""
        width = f' NumberOfComponents="{values.shape[1]}"' if values.ndim == 2 else ""
        kind = TYPES[values.dtype.name]
        lines.append(f'<DataArray type="{kind}" Name={quoteattr(what)}{size}{width} format="binary">{text}</DataArray>')
    return "\n".join([f"<{name}>", *lines, f"</{name}>"])
