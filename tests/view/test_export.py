"""Runs for other programs: what they read is what was simulated."""

import json
import struct
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.view.runs import made_up, run_of, twisting
from torchdismech import InputError, Trajectory
from torchdismech.cli import app
from torchdismech.view.export import is_export, save_export
from torchdismech.view.scenery import Scenery


@pytest.fixture(scope="module")
def scenery(tmp_path_factory) -> Scenery:
    """Return two robots of a run with a shell, a floor and a moving ball, side by side."""
    return Scenery(Trajectory.load(run_of(tmp_path_factory.mktemp("run"))), [0, 2], apart=True)


def accessor(document: dict, content: bytes, number: int) -> np.ndarray:
    """Return the array that an accessor of a glTF file stands for."""
    what = document["accessors"][number]
    view = document["bufferViews"][what["bufferView"]]
    dtype = {5126: "<f4", 5121: "u1", 5125: "<u4"}[what["componentType"]]
    width = {"SCALAR": 1, "VEC3": 3, "VEC4": 4}[what["type"]]
    values = np.frombuffer(content, dtype, what["count"] * width, view["byteOffset"])
    return values.reshape(-1, width)


def parts_of(path) -> tuple[dict, bytes]:
    """Return the document and the buffer of a glTF file, after checking its frame."""
    content = path.read_bytes()
    magic, version, total = struct.unpack("<4sII", content[:12])
    assert (magic, version, total) == (b"glTF", 2, len(content))
    size = struct.unpack("<I", content[12:16])[0]
    assert content[16:20] == b"JSON" and content[20 + size + 4 : 20 + size + 8] == b"BIN\0"
    return json.loads(content[20 : 20 + size]), content[20 + size + 8 :]


def test_gltf_moves_as_the_run_does(scenery, tmp_path):
    """Find the vertices of every frame in what the weights switch on at its time, and the ball's way."""
    path = tmp_path / "run.glb"
    save_export(scenery, path)
    document, content = parts_of(path)
    assert [node["name"] for node in document["nodes"]] == [
        "robot 0",
        "robot 2",
        *["floor"] * 2,
        *["obstacle0"] * 2,
        "z up",
    ]
    primitive = document["meshes"][1]["primitives"][0]
    base = accessor(document, content, primitive["attributes"]["POSITION"])
    targets = np.stack([accessor(document, content, t["POSITION"]) for t in primitive["targets"]])
    samplers = document["animations"][0]["samplers"]
    times = accessor(document, content, samplers[0]["input"])[:, 0]
    weights = accessor(document, content, samplers[0]["output"]).reshape(len(times), -1)
    assert np.allclose(times, scenery.times) and len(times) == 6
    for k, shown in enumerate(scenery):
        moved = base + np.einsum("t,tvc->vc", weights[k], targets)
        assert np.abs(moved - shown.vertices[1]).max() < 1e-6  # m: float32 of a metre
    channel = document["animations"][0]["channels"][-1]
    assert channel["target"] == {"node": 5, "path": "translation"}
    way = accessor(document, content, samplers[-1]["output"])
    assert np.allclose(way[-1] - way[0], [0.005, 0, 0], atol=1e-6)
    faces = accessor(document, content, primitive["indices"]).reshape(-1, 3)
    assert np.array_equal(faces, scenery.surface.faces)


def test_gltf_is_read_by_another_program(scenery, tmp_path):
    """Let trimesh read the file: all parts are there, the robot's height is along y."""
    import trimesh

    save_export(scenery, tmp_path / "run.glb")
    read = trimesh.load(tmp_path / "run.glb")
    assert len(read.geometry) == 6
    size = read.extents
    assert size[1] < size[0]


def test_run_without_time_is_its_last_frame(tmp_path):
    """Write the equilibrium of a static run, not where it was looked for from."""
    line = np.array([[0.0, 0, 0], [1, 0, 0]])
    run = made_up(np.stack([line, line + [0, 0, 1]]), [[0, 1]])
    run.time[:] = 0.0
    save_export(Scenery(run, [0]), tmp_path / "run.glb")
    document, content = parts_of(tmp_path / "run.glb")
    assert "animations" not in document
    heights = accessor(document, content, document["meshes"][0]["primitives"][0]["attributes"]["POSITION"])[:, 2]
    assert heights.min() > 0.5


def test_vtk_holds_nodes_and_values(scenery, tmp_path):
    """Read the frames by meshio: nodes, lines, triangles, velocities, radii; the list names files and times."""
    meshio = pytest.importorskip("meshio")
    path = tmp_path / "run.pvd"
    save_export(scenery, path)
    text = path.read_text()
    run = scenery.trajectory
    for k in range(6):
        assert f'timestep="{scenery.times[k].item()!r}" part="0" file="run_frames/run_{k:06d}.vtu"' in text
    mesh = meshio.read(tmp_path / "run_frames" / "run_000004.vtu")
    expected = run.positions[4].numpy()[[0, 2]] + scenery.offsets[:, None]
    assert np.array_equal(mesh.points, expected.reshape(-1, 3))
    cells = mesh.cells_dict
    assert np.array_equal(cells["line"], np.concatenate([run.rod_edges, run.rod_edges + 6]))
    assert np.array_equal(cells["triangle"], np.concatenate([run.triangles, run.triangles + 6]))
    assert np.array_equal(mesh.point_data["velocity"], run.velocities[4].numpy()[[0, 2]].reshape(-1, 3))
    assert np.allclose(mesh.point_data["speed"], np.linalg.norm(mesh.point_data["velocity"], axis=1))
    assert {"stretch", "curvature", "twist"} <= set(mesh.point_data)
    assert np.allclose(mesh.cell_data["radius"][0], [6e-3, 6e-3, 5e-3, 6e-3, 6e-3, 7e-3])
    assert mesh.cell_data["robot"][0].tolist() == [0] * 3 + [2] * 3
    assert 'Name="energy of kinetic" NumberOfTuples="2"' in (tmp_path / "run_frames" / "run_000004.vtu").read_text()


def test_tables_hold_the_nodes_of_one_robot(scenery, tmp_path):
    """Read the positions of each frame back to the last bit, under names; refuse several robots, as a row has one."""
    run, path = scenery.trajectory, tmp_path / "run.csv"
    with pytest.raises(InputError, match="run.csv: a table is of one robot, and 2 are shown"):
        save_export(scenery, path)
    assert not path.exists()
    save_export(Scenery(run, [2], every=2), path)
    assert is_export(path)
    table = np.genfromtxt(path, delimiter=",", names=True)
    kept = [0, 2, 4, 5]
    assert np.array_equal(table["time"], run.time[kept].numpy())
    positions = run.positions[kept, 2].numpy()
    for node in range(positions.shape[1]):
        assert np.array_equal(np.stack([table[f"{axis}{node}"] for axis in "xyz"], axis=1), positions[:, node])


@pytest.mark.parametrize("ending", ["usda", "usdc"])
def test_usd_moves_as_the_run_does(scenery, tmp_path, ending):
    """Read the points of a frame, the ball's way and the unit of time back from the stage."""
    pytest.importorskip("pxr")
    from pxr import Usd, UsdGeom

    path = tmp_path / f"run.{ending}"
    save_export(scenery, path)
    stage = Usd.Stage.Open(str(path))
    assert UsdGeom.GetStageUpAxis(stage) == "Z" and stage.GetTimeCodesPerSecond() == 1000
    mesh = UsdGeom.Mesh(stage.GetPrimAtPath("/run/robot_2"))
    at = 1000 * scenery.times[3]
    assert np.array_equal(np.array(mesh.GetPointsAttr().Get(at)), scenery.shown(3).vertices[1])
    ball = UsdGeom.Xformable(stage.GetPrimAtPath("/run/obstacle_3"))
    first, last = (np.array(ball.GetLocalTransformation(1000 * t))[3, 0] for t in scenery.times[[0, -1]])
    assert last - first == pytest.approx(0.005, abs=1e-6)


def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    """Name endings and folders that do not work and the package that is missing; spare folders of other things."""
    shown = Scenery(twisting()[0], [0])
    with pytest.raises(InputError, match="ends in .glb, .usda, .usdc, .pvd .* or .csv"):
        save_export(shown, tmp_path / "run.obj")
    with pytest.raises(InputError, match="there is no folder"):
        save_export(shown, tmp_path / "none" / "run.glb")
    monkeypatch.setitem(sys.modules, "pxr", None)
    with pytest.raises(InputError, match=r"need usd-core: pip install 'torchdismech\[export\]'"):
        save_export(shown, tmp_path / "run.usda")
    assert not list(tmp_path.iterdir())
    (tmp_path / "run_frames").mkdir()
    (tmp_path / "run_frames" / "thesis.txt").write_text("keep")
    with pytest.raises(InputError, match="holds other things than .vtu files"):
        save_export(shown, tmp_path / "run.pvd")
    assert [file.name for file in tmp_path.iterdir()] == ["run_frames"]


def test_the_command_exports(tmp_path):
    """Write a series twice, the second time over the first; refuse to without being asked."""
    run = run_of(tmp_path)

    def call(*options, status: int = 0):
        result = CliRunner().invoke(
            app, ["export", str(run), "--out", str(tmp_path / "a.pvd"), "--no-progress", *options]
        )
        assert result.exit_code == status, (result.output, result.exception)
        return result

    assert "6 frames of 3 robots" in call().stdout
    assert "pass --overwrite" in call(status=2).stderr
    call("--overwrite", "--every", "5")
    assert len(list((tmp_path / "a_frames").iterdir())) == 2
