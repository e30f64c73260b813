"""The signed distance of a closed triangle mesh, with its derivatives."""

import numpy as np
import pytest
import torch
import trimesh

from tests.contact.shape_derivatives import assert_derivatives_of_autograd, assert_derivatives_of_differences
from torchdismech.contact.obstacles import nearest
from torchdismech.contact.obstacles.mesh import Mesh
from torchdismech.contact.obstacles.shapes import Box, Sphere
from torchdismech.errors import InputError


def bumpy() -> trimesh.Trimesh:
    """Return a sphere with dents and bumps."""
    mesh = trimesh.creation.icosphere(3)
    bumps = 1 + 0.25 * np.sin(5 * mesh.vertices[:, 0]) * np.cos(7 * mesh.vertices[:, 1])
    return trimesh.Trimesh(mesh.vertices * bumps[:, None], mesh.faces, process=False)


def bracket() -> trimesh.Trimesh:
    """Return an L extruded along z: a concave edge, long triangles."""
    outline = np.array([(0, 0), (2, 0), (2, 0.4), (0.4, 0.4), (0.4, 1.5), (0, 1.5)])
    vertices = np.concatenate([np.insert(outline, 2, z, axis=1) for z in (0, 1)])
    top = np.array([(0, 1, 2), (0, 2, 3), (0, 3, 4), (0, 4, 5)]) + 6
    sides = [((i, j, j + 6), (i, j + 6, i + 6)) for i, j in zip(range(6), (1, 2, 3, 4, 5, 0), strict=True)]
    return trimesh.Trimesh(vertices, np.concatenate([top, top[:, ::-1] - 6, np.reshape(sides, (-1, 3))]), process=False)


def spike(pieces: int = 40) -> trimesh.Trimesh:
    """Return a thin pyramid with its tip at the origin, one of its three sides cut into many triangles."""
    a, b, c = (0.3 * np.array([np.cos(t), np.sin(t), 0]) - (0, 0, 2) for t in (0, 2 * np.pi / 3, 4 * np.pi / 3))
    side = a + np.linspace(0, 1, pieces + 1)[:, None] * (b - a)
    tip, last = pieces + 1, pieces + 2
    cut = np.stack([np.arange(pieces), np.arange(1, pieces + 1)], axis=1)
    faces = [np.insert(cut, 2, tip, axis=1), np.insert(cut[:, ::-1], 2, last, axis=1)]
    faces.append(np.array([(pieces, last, tip), (last, 0, tip)]))
    return trimesh.Trimesh(np.concatenate([side, [(0, 0, 0), c]]), np.concatenate(faces), process=False)


def two_bodies() -> trimesh.Trimesh:
    """Return two separate bodies."""
    other = trimesh.creation.box((1, 1, 1))
    other.apply_translation((3, 0.2, -0.3))
    return trimesh.util.concatenate([trimesh.creation.icosphere(2), other])


MESHES = {
    "sphere": lambda: trimesh.creation.icosphere(3),
    "bumpy": bumpy,
    "torus": lambda: trimesh.creation.torus(1.0, 0.4, 24, 12),
    "cylinder": lambda: trimesh.creation.cylinder(0.5, 2.0, sections=64),  # fans of thin triangles
    "bracket": bracket,
    "spike": spike,
    "two bodies": two_bodies,
    "tetrahedron": lambda: trimesh.Trimesh(
        np.eye(4)[:, :3], [(0, 1, 2), (0, 3, 1), (1, 3, 2), (2, 3, 0)], process=False
    ),
}


def scattered(mesh: trimesh.Trimesh, count: int, seed: int = 0) -> torch.Tensor:
    """Return points (1, count, 3): half around the mesh and in it, half near its surface; some far away."""
    rng = np.random.default_rng(seed)
    low, high = mesh.bounds
    around = rng.uniform(low - 0.3 * (high - low), high + 0.3 * (high - low), (count // 2, 3))
    on = mesh.triangles[rng.integers(len(mesh.faces), size=count - count // 2)]
    near = (rng.dirichlet((1, 1, 1), len(on))[:, :, None] * on).sum(axis=1) + rng.normal(0, 0.03, (len(on), 3))
    near[:20] *= 50
    return torch.from_numpy(np.concatenate([around, near]))[None]


def winding_number(mesh: trimesh.Trimesh, points: np.ndarray) -> np.ndarray:
    """Return how often the surface goes around each point: the sum of the triangles' solid angles over 4 pi."""
    total = np.zeros(len(points))
    for triangle in mesh.triangles:
        a, b, c = (corner - points for corner in triangle)
        la, lb, lc = (np.linalg.norm(x, axis=1) for x in (a, b, c))
        volume = (a * np.cross(b, c)).sum(axis=1)
        rest = la * lb * lc + (a * b).sum(axis=1) * lc + (b * c).sum(axis=1) * la + (c * a).sum(axis=1) * lb
        total += 2 * np.arctan2(volume, rest)
    return total / (4 * np.pi)


@pytest.mark.parametrize("name", MESHES)
def test_distance_is_the_independent_one(name):
    """Measure with trimesh, which looks at all triangles; take the sign from the winding number."""
    mesh = MESHES[name]()
    points = scattered(mesh, 1000)
    distance = Mesh(mesh.vertices, mesh.faces).distance(points)[0].numpy()
    _, expected, _ = trimesh.proximity.closest_point_naive(mesh, points[0].numpy())
    inside = winding_number(mesh, points[0].numpy()) > 0.5
    assert inside.any() and not inside.all()
    # trimesh takes triangles as degenerate by an absolute tolerance of 1e-8 in places; seen: 1e-14
    np.testing.assert_allclose(distance, np.where(inside, -expected, expected), rtol=1e-12, atol=1e-12)


def test_tip_has_the_right_side_all_around():
    """Ask around the tip of a spike: no number of triangles of one side tilts the others' points to the inside."""
    mesh = spike()
    points = torch.nn.functional.normalize(scattered(mesh, 4000), dim=-1) * 0.1
    inside = Mesh(mesh.vertices, mesh.faces).distance(points)[0].numpy() < 0
    assert (inside == (winding_number(mesh, points[0].numpy()) > 0.5)).all()


def pairs_looked_at(monkeypatch, search: nearest.NearestTriangle, points: torch.Tensor) -> int:
    """Return for how many pairs of point and triangle the search computes a distance."""
    counted, formula = [], nearest._square_distance

    def counting(p, frames):
        counted.append(len(p[0]))
        return formula(p, frames)

    monkeypatch.setattr(nearest, "_square_distance", counting)
    monkeypatch.setattr(nearest, "function_of", lambda *_: None)  # compiled code counts nothing
    search(points)
    monkeypatch.undo()
    return sum(counted)


def test_search_looks_at_few_triangles(monkeypatch):
    """Count on a sphere of 5120 triangles: a handful for points near it, some tens for points far away."""
    sphere = trimesh.creation.icosphere(4)
    search = Mesh(sphere.vertices, sphere.faces).nearest
    directions = torch.nn.functional.normalize(torch.randn(2000, 3, dtype=torch.float64), dim=1)
    assert pairs_looked_at(monkeypatch, search, 1.05 * directions) < 10 * 2000
    assert pairs_looked_at(monkeypatch, search, 100 * directions) < 100 * 2000


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", MESHES)
def test_compiled_code_finds_the_triangles_that_torch_finds(monkeypatch, name, dtype):
    """Ask around and in the mesh, far away, at the middles of triangles, and where several triangles are as near."""
    mesh = MESHES[name]()
    corners = torch.tensor(mesh.triangles)
    on_edges = (corners + corners.roll(1, 1)).flatten(0, 1) / 2
    points = [scattered(mesh, 2000)[0], corners.flatten(0, 1), on_edges, corners.mean(1), torch.zeros(1, 3)]
    points = torch.cat([*points, 1.3 * on_edges, torch.tensor([[torch.nan, 0, 0], [1e200, 0, 0]])]).to(dtype)
    search = Mesh(mesh.vertices, mesh.faces).to(dtype).nearest
    compiled = search(points)
    assert bool((search._compiled(points[:-2]) == compiled[:-2]).all())
    monkeypatch.setattr(nearest, "function_of", lambda *_: None)
    assert torch.equal(search(points), compiled)


def test_points_to_which_all_triangles_are_near():
    """Ask 50 times at the centre of a sphere of 5120 triangles, more pairs than are looked at together."""
    mesh = trimesh.creation.icosphere(4)
    obstacle = Mesh(mesh.vertices, mesh.faces)
    points = torch.zeros(1, 50, 3, dtype=torch.float64)
    depth = np.linalg.norm(mesh.triangles_center, axis=1).min()  # the triangles are nearly regular
    torch.testing.assert_close(
        obstacle.distance(points), torch.full((1, 50), -depth, dtype=torch.float64), rtol=1e-4, atol=0
    )
    few = obstacle.nearest(points[0])
    assert (few == few[0]).all()


def test_sphere_of_triangles_is_a_sphere_within_its_facets():
    """Compare with the ball around it: the mesh lies inside, nowhere deeper than its flattest facet."""
    mesh = trimesh.creation.icosphere(4, radius=0.2)
    facet = 0.2 - (mesh.triangles_center * mesh.face_normals).sum(axis=1).min()
    points = scattered(mesh, 5000)
    difference = Mesh(mesh.vertices, mesh.faces).distance(points) - Sphere((0, 0, 0), 0.2).distance(points)
    assert 0 < facet < 5e-4  # m: of 5120 triangles on a radius of .2 m, 2.3e-4
    # 1e-14: rounding of points up to 10 away
    assert (difference > -1e-14).all() and (difference < facet + 1e-14).all()


@pytest.mark.parametrize("subdivisions", [0, 3])
def test_mesh_of_a_box_is_the_box(subdivisions):
    """Compare distance, normal and curvature with the analytic box in all regions, also with flat inner edges."""
    mesh = trimesh.creation.box((1, 2, 3))
    for _ in range(subdivisions):
        mesh = mesh.subdivide()
    rotation = (0.3, -0.2, 0.9)
    turn = trimesh.transformations.rotation_matrix(np.linalg.norm(rotation), rotation)
    mesh.apply_transform(turn)
    points = 3 * torch.randn(3, 4000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    points[1] /= 6
    box, obstacle = Box((0, 0, 0), (1, 2, 3), rotation), Mesh(mesh.vertices, mesh.faces)
    expected, values = (shape.distance_and_derivatives(points) for shape in (box, obstacle))
    assert (expected[0] < 0).sum() > 500
    # 1e-12: positions up to 10; normals and curvatures lose digits where the distance is small
    distance = expected[0].abs()
    assert ((values[0] - expected[0]).abs() < 1e-12).all()
    assert ((values[1] - expected[1]).abs().amax(-1) < 1e-13 + 1e-14 / distance).all()
    assert ((values[2] - expected[2]).abs().flatten(2).amax(-1) < 1e-13 + 1e-13 / distance + 1e-14 / distance**2).all()


@pytest.mark.parametrize("name", MESHES)
def test_normal_and_curvature_are_the_autograd_derivatives(name):
    """Differentiate distance and normal by autograd."""
    mesh = MESHES[name]()
    assert_derivatives_of_autograd(Mesh(mesh.vertices, mesh.faces), scattered(mesh, 2000))


@pytest.mark.parametrize("name", ["bumpy", "bracket"])
def test_derivatives_are_the_central_differences(name):
    """Differentiate by central differences."""
    mesh = MESHES[name]()
    assert_derivatives_of_differences(Mesh(mesh.vertices, mesh.faces), scattered(mesh, 2000))


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_points_on_vertices_edges_and_faces_have_finite_derivatives(name, dtype):
    """Evaluate on the surface and in the middle: all values and two autograd derivatives are finite, d is 0."""
    mesh = MESHES[name]()
    corners = mesh.triangles
    middles = (corners + np.roll(corners, -1, axis=1)).reshape(-1, 3) / 2
    special = np.concatenate([mesh.vertices, middles, mesh.triangles_center, np.zeros((1, 3))])
    obstacle = Mesh(mesh.vertices, mesh.faces).to(dtype)
    points = torch.tensor(special[None], dtype=dtype, requires_grad=True)
    distance, normal, curvature = obstacle.distance_and_derivatives(points)
    rounding = 20 * torch.finfo(dtype).eps
    assert (distance[0, :-1].abs() < rounding).all()
    torch.testing.assert_close(normal.norm(dim=-1), torch.ones_like(distance))
    (slope,) = torch.autograd.grad(distance.sum(), points, create_graph=True)
    (second,) = torch.autograd.grad((slope**3).sum() + (normal**3).sum() + (curvature**2).sum(), points)
    for value in (distance, normal, curvature, slope, second):
        assert torch.isfinite(value).all()


def test_normals_at_an_edge_and_a_corner():
    """Ask on a cube: on edge and corner the normal is a face's; next to them it points away from them."""
    mesh = trimesh.creation.box((2, 2, 2))
    obstacle = Mesh(mesh.vertices, mesh.faces)
    on = torch.tensor([[[1, 0.3, 0.2], [1, 1, 0.3], [1, 1, 1], [-1, -1, 1]]], dtype=torch.float64)
    distance, normal, curvature = obstacle.distance_and_derivatives(on)
    assert (distance == 0).all() and (curvature == 0).all()
    assert ((normal * on.sign() == 1).sum(-1) == 1).all() and ((normal == 0).sum(-1) == 2).all()
    away = torch.tensor([[[0, 0, 0], [1, 1, 0], [1, 1, 1], [-1, -1, 1]]], dtype=torch.float64)
    distance, normal, _ = obstacle.distance_and_derivatives(on + 1e-9 * away)
    # 1e-7: the rounding of a position of 1, 1e-16, over 1e-9
    torch.testing.assert_close(distance[0, 1:], 1e-9 * away[0, 1:].norm(dim=-1), rtol=1e-6, atol=0)
    torch.testing.assert_close(normal[0, 1:], torch.nn.functional.normalize(away, dim=-1)[0, 1:], rtol=0, atol=1e-6)


def test_flat_edges_have_no_curvature():
    """Ask right above the edges within the faces of a turned, subdivided box: rounding makes none of them an edge."""
    mesh = trimesh.creation.box((1, 2, 3)).subdivide().subdivide()
    mesh.apply_transform(trimesh.transformations.rotation_matrix(0.7, (0.3, -0.2, 0.9)))
    flat = mesh.face_adjacency_angles < 1e-6
    ends = mesh.vertices[mesh.face_adjacency_edges[flat]]
    normals = mesh.face_normals[mesh.face_adjacency[flat, 0]]
    share = np.random.default_rng(0).uniform(0, 1, (20, len(ends), 1))
    above = share * ends[:, 0] + (1 - share) * ends[:, 1] + 0.01 * normals
    distance, normal, curvature = Mesh(mesh.vertices, mesh.faces).distance_and_derivatives(torch.from_numpy(above))
    assert (curvature == 0).all()
    torch.testing.assert_close(distance, torch.full_like(distance, 0.01), rtol=0, atol=1e-14)
    torch.testing.assert_close(normal, torch.from_numpy(normals).expand_as(normal), rtol=0, atol=1e-14)


def test_points_that_are_not_finite_stay_alone():
    """Mix in NaN, infinite and overflowing points: the others have their values, these are not silently finite."""
    mesh = trimesh.creation.icosphere(3)
    obstacle, points = Mesh(mesh.vertices, mesh.faces), scattered(mesh, 100)
    expected = obstacle.distance(points)
    spoiled = points.clone()
    spoiled[0, 10], spoiled[0, 20, 1], spoiled[0, 30] = torch.nan, torch.inf, 1e300
    distance = obstacle.distance(spoiled)
    good = torch.ones(100, dtype=torch.bool)
    good[[10, 20, 30]] = False
    assert torch.equal(distance[:, good], expected[:, good])
    assert torch.isnan(distance[0, 10])
    assert not (distance[0, [20, 30]].abs() < 1e299).any()


def test_rows_are_the_robots_alone():
    """Ask for three robots at once and one by one."""
    mesh = bumpy()
    obstacle = Mesh(mesh.vertices, mesh.faces)
    points = scattered(mesh, 1500).reshape(3, 500, 3)
    together = obstacle.distance_and_derivatives(points)
    for b in range(3):
        for rows, row in zip(together, obstacle.distance_and_derivatives(points[b : b + 1]), strict=True):
            torch.testing.assert_close(rows[b : b + 1], row, rtol=1e-14, atol=1e-14)


def test_no_points_are_no_trouble():
    """Ask for nothing."""
    mesh = bracket()
    distance, normal, curvature = Mesh(mesh.vertices, mesh.faces).distance_and_derivatives(
        torch.zeros(2, 0, 3, dtype=torch.float64)
    )
    assert distance.shape == (2, 0) and normal.shape == (2, 0, 3) and curvature.shape == (2, 0, 3, 3)


@pytest.mark.parametrize("name", MESHES)
def test_depth_is_an_upper_bound(name):
    """Look for deeper points than `depth`."""
    mesh = MESHES[name]()
    obstacle = Mesh(mesh.vertices, mesh.faces)
    assert (-obstacle.distance(scattered(mesh, 2000))).max() <= obstacle.depth


@pytest.mark.parametrize("suffix", ["stl", "obj", "ply", "off", "glb"])
def test_mesh_from_a_file(tmp_path, suffix):
    """Write with trimesh and read: the distances are those of the arrays."""
    mesh = bumpy()
    path = tmp_path / f"bumpy.{suffix}"
    mesh.export(path)
    points = scattered(mesh, 200)
    # files hold single precision or eight digits
    torch.testing.assert_close(
        Mesh.from_file(path).distance(points), Mesh(mesh.vertices, mesh.faces).distance(points), rtol=1e-6, atol=1e-6
    )


CUBE = trimesh.creation.box((1, 1, 1))
X, F = np.array(CUBE.vertices), np.array(CUBE.faces)
TURNED = np.where(np.arange(12)[:, None] == 5, F[:, ::-1], F)
REFUSED = {
    "hole": (X, F[1:], r"watertight.*3 edges"),
    "turned triangle": (X, TURNED, "consistently wound"),
    "inside out": (X, F[:, ::-1], "outwards.*got -1: reverse"),
    "one body inside out": (
        np.concatenate([X, X + 2]),
        np.concatenate([F, F[:, ::-1] + 8]),
        "outwards.*got -1: reverse",
    ),
    "folded": (X[:3], np.array([(0, 1, 2), (0, 2, 1)]), "given before"),
    "folded twice": (
        np.array([(0, 0, 0), (1, 0, 0), (0, 1, 0), (0.2, 0.2, 1e-12)]),
        np.array([(0, 2, 1), (0, 1, 3), (1, 2, 3), (2, 0, 3)]),
        "folded onto each other",
    ),
    "flat vertices": (X[:, :2], F, r"shape \(N, 3\)"),
    "quadrangles": (X, np.zeros((2, 4), dtype=int), r"shape \(F, 3\)"),
    "not finite": (np.where(X[3] == X, np.nan, X), F, "not finite"),
    "missing vertex": (X[:7], F, "there is no node 7"),
    "unused vertex": (np.concatenate([X, X[:1] + 5]), F, "belong to no triangle"),
    "ragged": ([(0, 0, 0), (1, 0)], F, "expected an array of numbers"),
    "float indices": (X, F * 1.0, "integer"),
}


@pytest.mark.parametrize(("vertices", "triangles", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_malformed_mesh_is_refused(vertices, triangles, message):
    """Refuse what is no closed, outward surface."""
    with pytest.raises(InputError, match=f"(?s)^Mesh: .*{message}"):
        Mesh(vertices, triangles)


def test_file_errors_name_the_file(tmp_path):
    """Refuse missing, broken and open files by their names, and triangles with corners that there are not.

    A binary stl file that was cut off was said to lack a module, and a ply file with a corner too many ended in an
    `IndexError`.
    """
    box, ply = trimesh.Trimesh(X, F, process=False), tmp_path / "corner.ply"
    with pytest.raises(InputError, match=r"none\.stl: cannot be read: No such file"):
        Mesh.from_file(tmp_path / "none.stl")
    (tmp_path / "broken.obj").write_text("v 0 0 0\nf 1 2 3\n")
    with pytest.raises(InputError, match=r"broken\.obj:2: there is no vertex 3"):
        Mesh.from_file(tmp_path / "broken.obj")
    (tmp_path / "strange.txt").write_text("hello")
    with pytest.raises(InputError, match=r"strange\.txt: expected a mesh file that ends in \.obj"):
        Mesh.from_file(tmp_path / "strange.txt")
    (tmp_path / "cut.stl").write_bytes(box.export(file_type="stl")[:-20])
    with pytest.raises(InputError, match=r"cut\.stl: .* takes? 684 bytes, and has 664: it is cut off"):
        Mesh.from_file(tmp_path / "cut.stl")
    ply.write_text(trimesh.exchange.ply.export_ply(box, encoding="ascii").decode().replace("3 1 3 0", "3 1 3 9", 1))
    with pytest.raises(InputError, match=r"corner\.ply: triangle 0 \(nodes 1, 3, 9\): there is no node 9"):
        Mesh.from_file(ply)
    trimesh.Trimesh(X, F[1:], process=False).export(tmp_path / "open.off")
    with pytest.raises(InputError, match=r"open\.off: expected a closed surface"):
        Mesh.from_file(str(tmp_path / "open.off"))


def test_lines_beside_the_triangles_of_a_file_are_left_out(tmp_path):
    """Read a box of an obj file with a line, and of a glb file with points: each has the triangles of the box."""
    box = trimesh.Trimesh(X, F, process=False)
    (tmp_path / "line.obj").write_text(box.export(file_type="obj") + "\nl 1 2\n")
    trimesh.Scene([box, trimesh.PointCloud(X + 3)]).export(tmp_path / "points.glb")
    for name in ("line.obj", "points.glb"):
        assert Mesh.from_file(tmp_path / name).triangles.shape == (12, 3)
