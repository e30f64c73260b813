"""What is drawn of robots: their own edges and triangles, markers that were seen, movies that move."""

import io

import numpy as np
import torch

from torchdismech.view.tubes import Profile, Tubes
from training.reports.pictures import _lines, shapes
from training.reports.solids import box, drawn, movie

SQUARE = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], dtype=torch.float64)
TRIANGLES = torch.tensor([[0, 1, 2], [0, 2, 3]])
NO_EDGES = torch.zeros(0, 2, dtype=torch.long)


def test_lines_are_edges_and_sides_each_once():
    """Draw the side that two triangles share, or that an edge lies on, once."""
    lines = _lines(torch.tensor([[1, 0], [3, 1]]), TRIANGLES).tolist()
    assert lines == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]


def test_solid_holds_robot_and_markers_that_were_seen():
    """Count the vertices of tubes, sheet and balls; leave out a marker that was not seen, also where it is NaN."""
    markers = SQUARE.clone()
    markers[2] = torch.nan
    solid = drawn(SQUARE, torch.tensor([[0, 1]]), TRIANGLES, markers, markers.isfinite().all(1), 1.0)
    tube = len(Tubes(np.array([[0, 1]]), np.array([0]), Profile.round()).node)
    assert len(solid.vertices) == tube + 4 + 3 * 12  # a ball is an icosahedron
    assert np.isfinite(solid.vertices).all()
    assert solid.faces.max() == len(solid.vertices) - 1
    normals = solid.triangles().normals[tube : tube + 4]
    assert np.abs(normals[:, 2]).min() > 0.999  # of the sheet, which is flat


def test_movie_is_a_picture_that_moves():
    """Write as many frames as there are solids, at their pace."""
    from PIL import Image

    seen = torch.ones(4, dtype=torch.bool)
    solids = [drawn(SQUARE + 0.2 * k, NO_EDGES, TRIANGLES, SQUARE, seen, 1.0) for k in range(3)]
    film = Image.open(io.BytesIO(movie(solids, *box(SQUARE, SQUARE + 0.4), seconds=0.1, size=(64, 48))))
    assert (film.n_frames, film.info["duration"], film.size) == (3, 100, (64, 48))


def test_shapes_are_seen_where_the_markers_reach_farthest():
    """Draw in x and y what lies in that plane, one picture for each recording and time."""
    nodes = SQUARE.expand(2, 5, -1, -1)
    figure = shapes(nodes, NO_EDGES, TRIANGLES, nodes, torch.ones(2, 5, 4, dtype=torch.bool), 0.1, [0.1, 0.5])
    assert len(figure.axes) == 4
    assert (figure._supxlabel.get_text(), figure._supylabel.get_text()) == ("x [m]", "y [m]")
