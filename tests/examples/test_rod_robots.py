"""Examples made of rods: their numbers against closed forms and theorems."""

from pathlib import Path

import numpy as np
import pytest

from examples.cantilever import cantilever
from examples.contortion import contortion
from examples.gripper import gripper
from examples.gripper.closing import GRIPS
from examples.pneunet import pneunet
from examples.pneunet.pressure import ANGLES
from examples.running import run
from examples.snake import slithering, snake
from examples.snake.waves import SLOPES
from examples.worm import worm
from examples.worm.joints import PHASES


@pytest.mark.parametrize(
    ("module", "file"),
    [
        (pneunet, "actuator.txt"),
        (gripper, "gripper.txt"),
        (snake, "snake.txt"),
        (contortion, "rod.txt"),
        (worm, "worm.txt"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_geometry_is_what_the_script_writes(module, file, tmp_path):
    """Write the committed file anew."""
    module.write_geometry(tmp_path / file)
    assert (tmp_path / file).read_text() == (module.FOLDER / file).read_text()


def test_geometry_of_the_cantilever(tmp_path):
    """Write the committed files anew."""
    cantilever.write_geometry(tmp_path)
    for file in ("rod.txt", "strip.obj"):
        assert (tmp_path / file).read_text() == (cantilever.FOLDER / file).read_text()


@pytest.mark.parametrize(
    ("model", "low", "high"), [("rod", 0.999, 1.001), ("hinge", 0.999, 1.001), ("midedge", 0.95, 1.0)]
)
def test_cantilever(model, low, high):
    """Meet the linear beam where it is stiff, and sink less than it where it is soft."""
    youngs, ratios = cantilever.ratios(model)
    assert youngs.tolist() == [2e10, 2e9, 2e8, 2e7]
    # the rod's error of second order at 50 edges is 2e-4; hinges: by chance (1.06 on equilateral triangles);
    # mid-edge normals: between beam and plate
    assert low < ratios[0] < high
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-3)
    assert (np.diff(ratios) < 1e-6).all() and 0.6 < ratios[3] < 0.75


def test_pneunet():
    """Bend by the natural angles without loads, and balance the moments with them."""
    free = run(pneunet.UNLOADED, allow_code=True, progress=False)
    # solved to 1e-9 N of bending forces of some N
    assert np.allclose(pneunet.tip_angles(free), ANGLES, rtol=0, atol=1e-7)
    loaded = run(pneunet.SCENE, allow_code=True, progress=False)
    assert pneunet.imbalance(loaded) < 1e-8
    assert (loaded.positions[-1] - free.positions[-1]).norm(dim=-1).amax(1).min() > 1e-3


def test_gripper():
    """Close to the openings of regular polygons."""
    trajectory = run(gripper.FOLDER / "scene.toml", allow_code=True, progress=False)
    expected = [gripper.polygon_opening(grip) for grip in GRIPS]
    # a second after closing some tens of micrometres of swing may be left
    assert np.allclose(gripper.openings(trajectory), np.array(expected)[:, None], rtol=0, atol=2e-5)


def check_snake(trajectory) -> None:
    """Hold the speeds against Gray and Hancock's."""
    found = snake.speeds(trajectory)
    ratios = found[:-1] / [snake.theory(slope) for slope in SLOPES[:-1]]
    # a finite body pitches: 3 to 4 % slower with three waves, at all amplitudes alike
    assert ((ratios > 0.95) & (ratios < 1.0)).all()
    # where the resistance is alike in all directions there is no way
    assert abs(found[-1]) < 1e-3 * found[-2]


def test_snake():
    """Swim as fast as theory says, with longer steps."""
    check_snake(
        run(snake.FOLDER / "scene.toml", allow_code=True, progress=False, **{"simulation.dt": 2e-2, "output.every": 5})
    )


@pytest.mark.slow
def test_snake_as_it_is():
    """Swim as fast as theory says."""
    check_snake(run(snake.FOLDER / "scene.toml", allow_code=True, progress=False))


@pytest.mark.slow
def test_slithering():
    """Slither as fast as the balance of friction says, backwards where friction is the same all around."""
    found = slithering.speeds(slithering.run(progress=False))
    given = zip(slithering.SIDEWAYS, slithering.FORWARD, slithering.BACKWARD, strict=True)
    expected = np.array([slithering.theory(*coefficients) for coefficients in given])
    # a body of six waves is not endless: 3 % where it is slow, 2 % with ten waves; tenths of a per cent where fast
    assert np.allclose(found, expected, rtol=0.04)
    assert expected[0] < 0 < expected[1]


@pytest.mark.slow
def test_contortion():
    """Keep all turns: twist and writhe change from rod to rod, their sum does not."""
    trajectory = run(contortion.FOLDER / "scene.toml", progress=False)
    twist, writhe = contortion.turns(trajectory)
    # closed at 1e4 m instead of far away: 1e-5 of a turn
    assert np.allclose(twist[-1] + writhe[-1], -1.5, rtol=0, atol=1e-4)
    assert (writhe[-1] < -0.05).all() and np.ptp(writhe[-1]) > 0.01
    # and in between: the left end has turned by as much as the scene says
    time = trajectory.time.numpy()
    turned = -1.5 * np.clip(time - 0.15, 0, 1)
    assert np.allclose(twist + writhe, turned[:, None], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_worm():
    """Go nowhere by strokes that look the same backwards, and by the sine of the phase otherwise."""
    found = worm.ways(
        run(worm.FOLDER / "scene.toml", allow_code=True, progress=False, **{"simulation.dt": 2e-2, "output.every": 5})
    )
    best = found[len(PHASES) // 2]
    assert abs(best) > 5e-3
    # 0.35 rad are not infinitesimal, and steps of 20 ms are of first order: 3 % of the best way
    assert np.allclose(found / best, np.sin(PHASES), rtol=0, atol=0.04)
    assert np.abs(found[[0, -1]] / best).max() < 1e-3


@pytest.mark.parametrize("name", ["pneunet", "gripper", "snake", "worm"])
def test_scenes_with_code_ask_first(name):
    """Refuse to run a scene's Python file unasked."""
    with pytest.raises(ValueError, match="allow-code"):
        run(Path(snake.FOLDER).parent / name / "scene.toml", progress=False)
