"""The page that shows a run, seen by a real browser, and its parts without one."""

import sys
import time

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.view.browser import Browser, chromium
from tests.view.runs import run_of, twisting
from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, Trajectory, rollout
from torchdismech.cli import app
from torchdismech.view.page import Live, Page, Wanted

viser = pytest.importorskip("viser")

PORT = 18080  # others are taken where it is in use


def hues(picture: np.ndarray) -> np.ndarray:
    """Return where the middle of a picture has a colour, between the page's notices and its panel."""
    width = picture.shape[1]
    return np.ptp(picture[:, width // 3 : 2 * width // 3].astype(int), axis=-1) > 40


def wait_until(condition, page: Page, seconds: float = 60.0) -> bool:
    """Let the page follow until a condition holds; return whether it did."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        page.tick()
        if condition():
            return True
        time.sleep(0.05)
    return False


def settled(browser: Browser, page: Page) -> np.ndarray:
    """Return what is seen once it stays the same: meshes fade in."""
    pictures = [browser.screenshot()]

    def same() -> bool:
        pictures.append(browser.screenshot())
        return np.array_equal(hues(pictures[-1]), hues(pictures[-2]))

    assert wait_until(same, page)
    return pictures[-1]


@pytest.fixture
def page(tmp_path):
    """Return a page with the run of three robots, a floor and a ball."""
    page = Page(Trajectory.load(run_of(tmp_path)), port=PORT)
    yield page
    page.close()


def test_page_follows_what_is_chosen(page):
    """Play in a circle; choose other robots, colours and places; say what cannot be shown, and go on."""
    assert page.address.startswith("http://127.0.0.1:") and len(page.scenery.robots) == 3
    page.play.value = True
    seen = set()
    assert wait_until(lambda: seen.add(int(page.frame.value)) or {0, 1, 5} <= seen, page, 10)
    page.play.value = False
    page._robots.value, page._colour.value, page._apart.value = "0,2", "twist", True
    page.tick()
    assert page.scenery.robots.tolist() == [0, 2] and page.scenery.offsets[1, 0] > 0
    assert "twist from" in page._legend.content and len(page.scenery.obstacles) == 4
    page._robots.value = "7"
    page.tick()
    assert "expected numbers 0 to 2" in page._legend.content and page.scenery.robots.tolist() == [0, 2]


def test_run_is_shown_while_it_goes_on():
    """Show each frame as it comes, with the radii of the model, and keep them all."""
    builder = RobotBuilder()
    builder.add_rod(np.linspace([0, 0, 0], [0.1, 0, 0], 4), Circle(3e-3), Material(1e6, 1000.0))
    model = builder.finalize()
    live = Live(port=PORT)
    try:
        run = rollout(model, model.initial_state(2), ImplicitEuler(1e-3), 3, writer=live)
        assert len(run.time) == 4 and live._time.content == "time 0.003 s, step 3"
        assert live._stage._scenery.half[0, 0].tolist() == [3e-3, 3e-3] and not live._stage._scenery.remarks
        assert live._stage._robots.glb_data[:4] == b"glTF"
    finally:
        live.stop()
    plain = rollout(model, model.initial_state(2), ImplicitEuler(1e-3), 3)
    assert torch.equal(run.positions, plain.positions)


def test_pages_that_cannot_be_are_refused(monkeypatch):
    """Name ports, addresses and robots that are not there, and what is to be installed."""
    run, _ = twisting()
    with pytest.raises(InputError, match="--port: expected 1 to 65535, got 0"):
        Page(run, port=0)
    with pytest.raises(InputError, match="--host 203.0.113.1 --port 18080: no page can be served there"):
        Page(run, host="203.0.113.1", port=PORT)
    with pytest.raises(InputError, match="--robots: expected numbers 0 to 1"):
        Page(run, Wanted(robots="2"), port=PORT)
    monkeypatch.setitem(sys.modules, "viser", None)
    with pytest.raises(InputError, match=r"needs viser: pip install 'torchdismech\[view3d\]'"):
        Page(run, port=PORT)


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_browser_shows_the_run(page, tmp_path):
    """Load the page in Chromium: there is a picture, frames advance, another frame is another picture."""
    browser = Browser(chromium(), tmp_path / "profile", page.address)
    try:

        def drawn() -> bool:
            return hues(browser.screenshot()).sum() > 200

        assert wait_until(drawn, page, 120), "nothing was drawn"
        assert wait_until(lambda: "time 0 s" in browser.evaluate("document.body.innerText"), page)
        first = settled(browser, page)
        assert not hues(first)[[0, -1]].any(), "the camera does not find the robots"
        page.frame.value = 5
        assert wait_until(lambda: "time 0.05 s" in browser.evaluate("document.body.innerText"), page)
        assert wait_until(lambda: (hues(browser.screenshot()) != hues(first)).any(), page)
        before = int(page.frame.value)
        page.play.value = True
        assert wait_until(lambda: int(page.frame.value) != before, page)
        page.play.value = False
        page._colour.value = "speed"
        assert wait_until(lambda: "speed from" in browser.evaluate("document.body.innerText"), page)
        assert wait_until(drawn, page)
    finally:
        browser.close()


def test_the_command_refuses_what_is_no_run(tmp_path):
    """Say in one line that a file is no trajectory and which robots there are, before a page is served."""
    (tmp_path / "text.h5").write_text("no trajectory")
    run = run_of(tmp_path)
    refused = {"not a trajectory file": [tmp_path / "text.h5"], "numbers 0 to 2": [run, "--robots", "9"]}
    for words, arguments in refused.items():
        result = CliRunner().invoke(app, ["view", *map(str, arguments)])
        assert result.exit_code == 2 and words in result.stderr and result.stderr.count("\n") == 1, result.output
