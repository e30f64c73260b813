"""Points that are nodes already."""

import numpy as np

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
