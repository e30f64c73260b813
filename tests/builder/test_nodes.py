"""Points that are nodes already."""

import numpy as np

from torchdismech import Circle, Material, RobotBuilder, straight
from torchdismech.builder import nodes as builder_nodes


def test_nearest_nodes(monkeypatch):
    """Find the same nodes by all distances and by a tree."""
    rng = np.random.default_rng(0)
    nodes = rng.normal(size=(120, 3))
    points = np.concatenate([nodes[:60] + 1e-9 * rng.normal(size=(60, 3)), rng.normal(size=(100, 3))])
    distance, index = builder_nodes.nearest(points, nodes)
    monkeypatch.setattr(builder_nodes, "FEW_DISTANCES", 0)
    by_tree, index_by_tree = builder_nodes.nearest(points, nodes)
    assert index.tolist() == index_by_tree.tolist()
    assert np.allclose(distance, by_tree, rtol=1e-14, atol=1e-16)
    assert np.isinf(builder_nodes.nearest(points, nodes[:0])[0]).all()


def test_boxes_have_the_nodes_on_their_faces():
    """Fix nodes that rounding puts outside of a box, as those of float32 and of lengths that are scaled; no others."""
    grid = np.array([[0.1 * i, 0.1 * j, 0.0] for i in range(4) for j in range(2)])
    for nodes in (grid, grid.astype(np.float32).astype(float), 1e-3 * (1e3 * grid)):
        assert builder_nodes.nodes_in_box(nodes, np.zeros(3), np.array([0.1, 0.1, 0.0])).tolist() == [0, 1, 2, 3]
        assert builder_nodes.nodes_in_box(nodes, np.array([0.1, 0.1, 0.0]), np.array([0.2, 1, 1])).tolist() == [3, 5]
    assert builder_nodes.nodes_in_box(grid, np.zeros(3), np.array([0.0999, 0.0999, 0.0])).tolist() == [0]
    assert not len(builder_nodes.nodes_in_box(grid[:0], np.zeros(3), np.ones(3)))
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.015, 0, 0), 6) * (1 + 6e-8), Circle(1e-4), Material(1e6, 1e3))
    builder.clamp(box=((0, 0, 0), (0.009, 0, 0)))
    assert builder.finalize().body.clamps[0].nodes.tolist() == [0, 1, 2, 3]
