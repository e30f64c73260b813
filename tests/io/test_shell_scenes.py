"""Scenes with shells: what a file says is what the model does."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from torchdismech import Circle, Material, RobotBuilder, Trajectory, forces, meshes, rollout
from torchdismech.cli import app
from torchdismech.io.meshes import write_mesh
from torchdismech.io.scene import load_scene

SHEET = meshes.rectangle(0.06, 0.04, 0.02)
SHELL = "[shell]\nthickness = 1e-3\nyoungs = 1e6\npoisson = 0.3\ndensity = 1000.0\n"
BENT = {"midedge": SHELL, "hinge": SHELL.replace("poisson = 0.3\n", 'bending = "hinge"\n')}
REST = """
[[clamp]]
box = {min = [-1, -1, -1], max = [1e-9, 1, 1]}
[environment]
gravity = [0, 0, -9.81]
drag = {density = 10.0, coefficient = 1.5}
[simulation]
dt = 0.01
duration = 0.05
[output]
every = 1
"""


def written(folder, geometry: str, shell: str = SHELL, more: str = ""):
    """Return the path of a scene in the folder, beside sheet.obj and sheet.txt."""
    write_mesh(folder / "sheet.obj", SHEET.nodes, SHEET.triangles)
    rows = [f"{x!r}, {y!r}, {z!r}" for x, y, z in SHEET.nodes.tolist()]
    faces = [", ".join(str(i + 1) for i in face) for face in SHEET.triangles.tolist()]
    (folder / "sheet.txt").write_text("\n".join(["*Nodes", *rows, "*Triangles", *faces]))
    path = folder / "scene.toml"
    path.write_text(f"[robot]\n{geometry}\n{shell}{REST}{more}")
    return path


def run(path):
    """Return the trajectory of the scene."""
    setup = load_scene(path).build()
    return rollout(setup.model, setup.state, setup.integrator, setup.steps, schedule=setup.schedule, every=setup.every)


@pytest.mark.parametrize("bending", ["hinge", "midedge"])
@pytest.mark.parametrize("geometry", ['file = "sheet.obj"', 'file = "sheet.txt"', "inline"])
def test_geometry_by_any_way_is_that_of_the_builder(tmp_path, geometry, bending):
    """Move as the model from Python does, whatever the file of the mesh."""
    if geometry == "inline":
        geometry = f"nodes = {SHEET.nodes.tolist()}\ntriangles = {SHEET.triangles.tolist()}"
    path = written(tmp_path, geometry, BENT[bending])
    found = run(path)
    builder = RobotBuilder()
    builder.add_shell(SHEET.nodes, SHEET.triangles, 1e-3, Material(1e6, 1000.0, 0.3), bending)
    builder.clamp(nodes=np.flatnonzero(SHEET.nodes[:, 0] < 1e-9).tolist())
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.Drag(10.0, 1.5))
    model = builder.finalize()
    expected = rollout(model, model.initial_state(), load_scene(path).build().integrator, 5)
    # the same numbers in the same order: bitwise but for what the mesh format rounds
    assert torch.allclose(found.positions, expected.positions, rtol=0, atol=1e-12)
    assert found.triangles.tolist() == SHEET.triangles.tolist()
    assert (found.positions[-1] - found.positions[0]).abs().max() > 1e-3


def test_thickness_and_fluid_are_drawn_for_each_robot(tmp_path):
    """Give each robot its own thickness, Young's modulus and fluid."""
    more = """
[batch]
size = 3
[batch.randomize]
"shell.thickness" = {values = [1e-3, 2e-3, 3e-3]}
"shell.youngs" = {uniform = [1e6, 2e6]}
"environment.drag.density" = {values = [1.0, 10.0, 100.0]}
"""
    setup = load_scene(written(tmp_path, 'file = "sheet.obj"', more=more)).build()
    model = setup.model
    assert model.batch == 3
    ratio = model.body.node_mass().sum(1)
    assert torch.allclose(ratio, 1000.0 * 0.06 * 0.04 * torch.tensor([1e-3, 2e-3, 3e-3], dtype=torch.float64))
    stiffness = model.term("midedge").energy.stiffness[:, 0]
    youngs = load_scene(tmp_path / "scene.toml").randomized["shell.youngs"]
    cubes = torch.tensor([1.0, 8.0, 27.0], dtype=torch.float64) * 1e-9
    assert torch.allclose(stiffness, youngs * cubes / (24 * (1 - 0.3**2)))
    assert model.forces[1].density.flatten().tolist() == [1.0, 10.0, 100.0]


def test_rods_and_several_shells_in_one_scene(tmp_path):
    """Build two sheets of unlike thickness with a rod between them, pinned or stiff."""
    nodes = [[0, 0, 0], [0, 1, 0], [1, 0, 0], [2, 0, 0], [3, 0, 0], [4, 0, 0], [4, 1, 0]]
    robot = f"nodes = {nodes}\nrod_edges = [[2, 3], [3, 4]]\ntriangles = [[0, 2, 1], [4, 5, 6]]\n"
    tables = """
[rod]
section = {shape = "circle", radius = 1e-2}
youngs = 1e6
density = 1000.0
[[shell]]
nodes = [0, 1, 2]
thickness = 1e-2
youngs = 1e6
density = 1000.0
bending = "hinge"
[[shell]]
nodes = [4, 5, 6]
thickness = 2e-2
youngs = 1e6
density = 1000.0
membrane = "springs"
[simulation]
dt = 0.01
duration = 0.02
"""
    for joints, joint_edges, springs in (("pinned", 0, 1), ("stiff", 6, 11)):
        path = tmp_path / f"{joints}.toml"
        path.write_text(f'[robot]\n{robot}joints = "{joints}"\n{tables}')
        model = load_scene(path).build().model
        assert len(model.body.joint_edges) == joint_edges and len(model.springs) == springs
        assert len(model.body.normal_edges) == 3  # the second sheet's
        assert model.nodes.tolist() == nodes
        assert model.body.node_volume.sum().item() == pytest.approx(0.5 * 1e-2 + 0.5 * 2e-2 + 2 * np.pi * 1e-4)
    rod = RobotBuilder()
    rod.add_rod(np.array(nodes[2:5], dtype=float), Circle(1e-2), Material(1e6, 1000.0))
    lengths = rod.finalize().body.edge_length
    assert torch.equal(model.body.edge_length, lengths)


def test_hinges_follow_a_table(tmp_path):
    """Take natural hinge angles from a CSV file, in the order that `check --springs` prints."""
    path = written(tmp_path, 'file = "sheet.obj"', more='\n[actuation]\nnatural_hinge_angle = "angles.csv"\n')
    count = len(model_of_sheet().hinges)
    (tmp_path / "angles.csv").write_text(f"0{',0' * count}\n0.1{',0.2' * count}\n")
    setup = load_scene(path).build()
    control = setup.schedule(torch.tensor([0.05], dtype=torch.float64), setup.model)
    assert torch.allclose(control.natural_hinge_angle, torch.full((1, count), 0.1, dtype=torch.float64))
    printed = CliRunner().invoke(app, ["check", str(path), "--springs"]).stdout
    last = setup.model.hinges[-1].tolist()
    assert printed.strip().endswith(f"{count - 1}: {' '.join(map(str, last))}")
    assert "ms a robot to factor and solve" in printed and f"(hinges: {count})" in printed


def model_of_sheet():
    """Return the model of the sheet alone."""
    builder = RobotBuilder()
    builder.add_shell(SHEET.nodes, SHEET.triangles, 1e-3, Material(1e6, 1000.0, 0.3))
    return builder.finalize()


@pytest.mark.parametrize("bending", ["hinge", "midedge"])
def test_resumed_run_is_the_uninterrupted_one(tmp_path, bending):
    """Go on from a file to the same bits: mid-edge normals and their frames are in it."""
    path = written(tmp_path, 'file = "sheet.obj"', BENT[bending])
    runner = CliRunner()
    whole, part = tmp_path / "whole.h5", tmp_path / "part.h5"
    for arguments in (
        ["--out", str(whole)],
        ["--out", str(part), "--steps", "2"],
        ["--out", str(part), "--resume", str(part)],
    ):
        result = runner.invoke(app, ["simulate", str(path), "--no-progress", *arguments])
        assert result.exit_code == 0, result.output
    both = [Trajectory.load(file) for file in (whole, part)]
    assert torch.equal(both[0].positions, both[1].positions) and torch.equal(both[0].twist, both[1].twist)
    assert both[0].twist.shape[-1] == (0 if bending == "hinge" else len(model_of_sheet().body.surface.edges))
    assert set(both[0].energies) == {"kinetic", "membrane", bending}


def test_turned_triangles_and_loose_parts_are_told(tmp_path):
    """Warn of triangles that were wound against the others, and count the parts that nothing joins."""
    robot = f"nodes = {[*SHEET.nodes.tolist(), [9, 0, 0], [9, 1, 0], [9, 0, 1]]}\n"
    faces = SHEET.triangles.copy()
    faces[2] = faces[2, ::-1]
    count = len(SHEET.nodes)
    path = written(tmp_path, f"{robot}triangles = {[*faces.tolist(), [count, count + 1, count + 2]]}")
    with pytest.warns(UserWarning, match="1 of .* triangles"):
        model = load_scene(path).build().model
    assert sorted(model.triangles[2].tolist()) == sorted(SHEET.triangles[2].tolist())
    assert np.array_equal(model.triangles[2], np.roll(SHEET.triangles[2], -_shift(model.triangles[2], 2)))
    with pytest.warns(UserWarning, match="triangles"):
        printed = CliRunner().invoke(app, ["check", str(path)]).stdout
    assert "2 that no edge joins" in printed


def _shift(face, k: int) -> int:
    """Return by how many places a triangle of the sheet is rolled."""
    return next(s for s in range(3) if np.array_equal(np.roll(SHEET.triangles[k], -s), face))


def test_shells_of_given_stiffnesses_need_no_youngs(load):
    """Leave Young's modulus out where both stiffnesses are given: they are what the model has."""
    shell = SHELL.replace("youngs = 1e6\n", "stiffness = {membrane = 1e3, bending = 1e-4}\n")
    triangle = "[robot]\nnodes = [[0, 0, 0], [0.05, 0, 0], [0, 0.05, 0]]\ntriangles = [[0, 1, 2]]\n"
    model = load(triangle + shell + REST).build().model
    values = [getattr(*model.places[name]).unique().tolist() for name in ("membrane.stiffness", "midedge.stiffness")]
    assert values == [[1e3], [1e-4]]
