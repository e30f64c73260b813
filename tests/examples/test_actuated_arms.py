"""Arms with tendons and chambers: their numbers, and the files that their scripts write."""

import numpy as np
import pytest

from examples.bellow import bellow
from examples.running import run
from examples.tendon_arm import tendon_arm


def test_bellow():
    """Bend and stretch as an arc does."""
    found, expected = bellow.angles_and_lengths(run(bellow.SCENE, progress=False)), bellow.expected()
    # second order in the edges: the largest bend is .03 rad a node, its square 9e-4
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4)


def test_files_are_what_the_scripts_write(tmp_path):
    """Write the committed files anew."""
    bellow.write_geometry(tmp_path / "bellow.txt")
    tendon_arm.write_files(tmp_path)
    for path in tmp_path.iterdir():
        folder = bellow.FOLDER if path.name == "bellow.txt" else tendon_arm.FOLDER
        assert path.read_text() == (folder / path.name).read_text(), path.name


@pytest.mark.slow
def test_tendon_arm():
    """Go nearly round, in a circle of the size that the lengths of the tendons ask for."""
    found = tendon_arm.radii(run(tendon_arm.SCENE, progress=False)) / tendon_arm.radius_of_arc()
    # gravity, the stretch of the arm under its tendons and their friction shift it by a per cent
    assert found.min() > 0.98
    assert found.max() < 1.03
