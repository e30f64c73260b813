"""Runs as binary glTF 2.0 (.glb): surfaces whose vertices move from frame to frame, for Blender and browsers.

glTF moves vertices by morph targets: displacements from the mesh, times weights that change over time. Frame 0 is the
mesh, frame k the target k - 1, with weight one at its time; between frames weights, and so vertices, change evenly.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from torchdismech.errors import InputError
from torchdismech.view.scenery import Scenery, Shown

__all__ = ["still_glb", "write_glb"]

MAX_BYTES = 2**32 - 1  # bytes of a file, which it counts in 32 bits
FLOAT, BYTE, INDEX = 5126, 5121, 5125  # glTF's codes of the types float32, uint8 and uint32
ARRAY, ELEMENTS = 34962, 34963  # glTF's codes of what a buffer view holds: attributes of vertices, or indices
TOO_LARGE = "--out: more than 4 GiB do not fit into a .glb file: choose fewer robots, or a larger --every"
GAMMA = 2.2
Z_UP = [-(0.5**0.5), 0.0, 0.0, 0.5**0.5]  # quaternion x, y, z, w that turns z to glTF's upward axis, y


class _Buffer:
    """The binary part of a file, with the buffer views and accessors by which its JSON part refers to arrays there."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.views: list[dict[str, Any]] = []
        self.accessors: list[dict[str, Any]] = []

    def add(self, values: np.ndarray, target: int | None = None, bounds: bool = False, normalised: bool = False) -> int:
        """Append an array (n,), (n, 3) or (n, 4); return the number of its accessor.

        Parameters
        ----------
        target : `ARRAY` or `ELEMENTS`; None for data of animations.
        bounds : whether the accessor gives the least and largest values.
        normalised : whether integers stand for numbers from 0 to 1.
        """
        kinds = {"float32": FLOAT, "uint8": BYTE, "uint32": INDEX}
        view = {"buffer": 0, "byteOffset": len(self.content), "byteLength": values.nbytes}
        self.views.append(view | ({} if target is None else {"target": target}))
        self.content += np.ascontiguousarray(values).tobytes()
        self.content += bytes(-len(self.content) % 4)
        if len(self.content) > MAX_BYTES:
            raise InputError(TOO_LARGE)
        kind = "SCALAR" if values.ndim == 1 else f"VEC{values.shape[1]}"
        accessor = {
            "bufferView": len(self.views) - 1,
            "componentType": kinds[values.dtype.name],
            "count": len(values),
            "type": kind,
        }
        if bounds:
            low, high = values.min(0), values.max(0)
            accessor |= {"min": np.atleast_1d(low).tolist(), "max": np.atleast_1d(high).tolist()}
        self.accessors.append(accessor | ({"normalized": True} if normalised else {}))
        return len(self.accessors) - 1


def write_glb(scenery: Scenery, path: Path, frames: Iterable[Shown]) -> None:
    """Write all robots and obstacles, animated over the frames, with the colours of the first frame.

    Of a run without time, such as one to an equilibrium, only the last frame is written.
    """
    buffer = _Buffer()
    every = list(frames)
    times = (scenery.times - scenery.times[0]).astype(np.float32)
    moving = len(every) > 1 and times[-1] > 0
    every = every if moving else every[-1:]
    time_accessor = buffer.add(times, bounds=True) if moving else -1
    nodes: list[dict[str, Any]] = []
    meshes: list[dict[str, Any]] = []
    channels: list[dict[str, Any]] = []
    samplers: list[dict[str, Any]] = []
    if moving:  # the weights of all robots are the same
        weights = buffer.add(np.eye(len(every), dtype=np.float32)[:, 1:].ravel())
        samplers.append({"input": time_accessor, "output": weights, "interpolation": "LINEAR"})
    for k, robot in enumerate(scenery.robots):
        robot_frames = [(shown.vertices[k], shown.normals[k]) for shown in every]
        meshes.append(_mesh(buffer, robot_frames, every[0].colours[k], scenery.surface.faces))
        nodes.append({"name": f"robot {robot}", "mesh": len(meshes) - 1})
        if moving:
            channels.append({"sampler": 0, "target": {"node": len(nodes) - 1, "path": "weights"}})
    for placed in scenery.obstacles:
        surface = placed.surface
        meshes.append(_mesh(buffer, [(surface.vertices, surface.normals)], surface.colours, surface.faces))
        shifts = (placed.offset + surface.displacements(scenery.times)).astype(np.float32)
        nodes.append({"name": surface.name, "mesh": len(meshes) - 1, "translation": shifts[0].tolist()})
        if moving and surface.moves:
            samplers.append({"input": time_accessor, "output": buffer.add(shifts), "interpolation": "LINEAR"})
            channels.append({"sampler": len(samplers) - 1, "target": {"node": len(nodes) - 1, "path": "translation"}})
    root = {"name": "z up", "rotation": Z_UP, "children": list(range(len(nodes)))}
    animation = {"animations": [{"name": "run", "channels": channels, "samplers": samplers}]} if channels else {}
    path.write_bytes(_file(buffer, meshes, [*nodes, root], len(nodes), animation))


def still_glb(shown: Shown, faces: np.ndarray) -> bytes:
    """Return a file with one mesh of all robots in a frame; unlike `write_glb` it keeps z as the upward axis."""
    buffer = _Buffer()
    vertices, normals, colours, every = shown.as_one(faces)
    return _file(buffer, [_mesh(buffer, [(vertices, normals)], colours, every)], [{"name": "robots", "mesh": 0}], 0, {})


def _file(
    buffer: _Buffer, meshes: list[dict[str, Any]], nodes: list[dict[str, Any]], root: int, animation: dict[str, Any]
) -> bytes:
    """Return the content of a .glb file whose scene is the node of number `root` with its children."""
    document = {
        "asset": {"version": "2.0", "generator": "torchdismech"},
        "scene": 0,
        "scenes": [{"nodes": [root]}],
        "nodes": nodes,
        "meshes": meshes,
        "materials": [{"doubleSided": True, "pbrMetallicRoughness": {"metallicFactor": 0.0, "roughnessFactor": 0.6}}],
        "accessors": buffer.accessors,
        "bufferViews": buffer.views,
        "buffers": [{"byteLength": len(buffer.content)}],
    }
    text = json.dumps(document | animation).encode()
    text += b" " * (-len(text) % 4)
    total = 12 + 8 + len(text) + 8 + len(buffer.content)
    if total > MAX_BYTES:
        raise InputError(TOO_LARGE)
    head = struct.pack("<4sII", b"glTF", 2, total) + struct.pack("<I4s", len(text), b"JSON")
    return b"".join([head, text, struct.pack("<I4s", len(buffer.content), b"BIN\0"), buffer.content])


def _mesh(
    buffer: _Buffer, frames: list[tuple[np.ndarray, np.ndarray]], colours: np.ndarray, faces: np.ndarray
) -> dict[str, Any]:
    """Add a mesh to the buffer, and return its description: the first frame, and a morph target for each other one.

    Parameters
    ----------
    frames : vertices [m] and unit normals, (V, 3), of each frame.
    colours, faces : (V, 3) uint8 and (F, 3), the same in all frames.
    """
    first, normals = frames[0]
    linear = (255 * (colours / 255.0) ** GAMMA).round().astype(np.uint8)  # glTF's colours are linear in light
    opaque = np.concatenate([linear, np.full((len(colours), 1), 255, dtype=np.uint8)], axis=1)
    primitive: dict[str, Any] = {
        "attributes": {
            "POSITION": buffer.add(first, ARRAY, bounds=True),
            "NORMAL": buffer.add(normals, ARRAY),
            "COLOR_0": buffer.add(opaque, ARRAY, normalised=True),
        },
        "indices": buffer.add(faces.astype(np.uint32).ravel(), ELEMENTS),
        "material": 0,
    }
    targets = [
        {"POSITION": buffer.add(v - first, ARRAY, bounds=True), "NORMAL": buffer.add(n - normals, ARRAY)}
        for v, n in frames[1:]
    ]
    moves = {"targets": targets} if targets else {}
    return {"primitives": [primitive | moves]} | ({"weights": [0.0] * len(targets)} if targets else {})
