"""Malformed configs of fits: each fault is named by its field, with what to write in its place."""

from importlib.resources import files

import pytest

from torchdismech import InputError
from torchdismech.io.schema.scene import Document
from training.config import Config, load
from training.config.loading import OF_FITS, OF_SCENES

GOOD = {
    "head": 'name = "one"',
    "data": '[data]\npath = "recordings"',
    "robot": "[robot]\ngripped = [0, 1]",
    "learned": '[constants]\nyoungs = { tensors = ["bend_twist.EI1"] }',
    "stages": '[[stages]]\nname = "first"\ntrain = ["constants"]\niterations = 3',
}
SCENE = (files("torchdismech") / "demo" / "scene.toml").read_text(encoding="utf-8")
TERM_FIELDS = "kind, network, strain, replace, options"
MALFORMED = {
    "term without kind": (
        {"learned": '[terms]\ndrag = { network = "DragLaw" }'},
        "terms.drag.kind: missing; expected 'force', 'energy' or 'dissipation'",
    ),
    "term of another kind": (
        {"learned": '[terms]\ndrag = { kind = "drag", network = "DragLaw" }'},
        "terms.drag.kind: expected 'force', 'energy' or 'dissipation', got 'drag'",
    ),
    "misspelt field": (
        {"learned": '[terms]\ndrag = { kid = "force", network = "DragLaw" }'},
        f"terms.drag.kid: unknown key; did you mean 'kind'? expected one of {TERM_FIELDS}",
    ),
    "term without a table": (
        {"learned": '[terms]\ndrag = "DragLaw"'},
        f"terms.drag: expected tables with names, as [terms.NAME], of the keys {TERM_FIELDS}, got 'DragLaw'",
    ),
    "terms without names": (
        {"learned": '[[terms]]\nkind = "force"\nnetwork = "DragLaw"'},
        f"terms: expected tables with names, as [terms.NAME], of the keys {TERM_FIELDS}, got [{{'kind'",
    ),
    "text for a list": (
        {"learned": '[constants]\nyoungs = { tensors = "bend_twist.EI1" }'},
        "constants.youngs.tensors: expected a list, got 'bend_twist.EI1'",
    ),
    "number with a unit": (
        {"robot": '[robot]\ngripped = [0, 1]\nbending = "5e-3 N m^2"'},
        "robot.bending: expected a number, got '5e-3 N m^2'",
    ),
    "number for a vector": (
        {"robot": "[robot]\ngripped = [0, 1]\ngravity = -9.81"},
        "robot.gravity: expected a list, got -9.81",
    ),
    "field of another kind of robot": (
        {"robot": '[robot]\nscene = "arm.toml"\nbending = 5e-3'},
        "robot.bending: unknown key; expected one of scene, overrides, gripped",
    ),
    "field of another table": (
        {"head": 'name = "one"\niterations = 3'},
        "iterations: unknown key; did you mean stages.iterations? expected one of name, seed",
    ),
    "a letter of a field left out": (
        {"robot": '[robot]\nscene = "arm.toml"\n[markers]\nnode = [3]'},
        "markers.node: unknown key; did you mean 'nodes'?",
    ),
    "constants that nothing trains": (
        {
            "learned": GOOD["learned"] + '\n[terms]\ndrag = { kind = "force", network = "DragLaw" }',
            "stages": GOOD["stages"].replace("constants", "learned"),
        },
        "constants: no stage trains them: add them to the train of one, or leave them out",
    ),
    "table in the one before": (
        {"data": '[data]\npath = "recordings"\nnoise = 0.1'},
        "data.noise: unknown key; noise is a table of its own, [noise]; expected one of path, train",
    ),
}


def text(**parts: str) -> str:
    """Return a config, some parts of which are others than the good ones."""
    return "\n".join({**GOOD, **parts}.values())


@pytest.mark.parametrize(("parts", "message"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_fit_is_refused(tmp_path, parts, message):
    """Name file and field, and say what was expected."""
    path = tmp_path / "fit.toml"
    path.write_text(text(**parts))
    with pytest.raises(InputError) as refused:
        load(path)
    assert str(refused.value).startswith(f"{path}: ") and message in str(refused.value)


def test_good_fit_is_accepted(tmp_path):
    """Accept the config that all cases start from, so that each is refused for its own fault."""
    path = tmp_path / "fit.toml"
    path.write_text(text())
    assert load(path).name == "one"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    {
        "a scene": ("rod.toml", SCENE, 'is a scene: expected the config of a fit, .*robot = {scene = "rod.toml"}'),
        "a table": ("markers.csv", "time, x\n0, 1\n", r"expected the config of a fit, in TOML \(or .json\), no TOML: "),
        "a broken one": ("fit.json", "{", r"expected the config of a fit, in TOML \(or .json\), no JSON: "),
    }.values(),
)
def test_what_is_no_config_is_called_so(tmp_path, name, content, message):
    """Say what came where a config is expected: one faulty field after the other helped nobody."""
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        load(tmp_path / name)
    with pytest.raises(InputError, match="load: expected the path of a file, got None"):
        load(None)


def test_scenes_and_configs_are_told_apart():
    """Know each by tables that the other has not."""
    scene, fit = set(Document.model_fields), set(Config.model_fields)
    assert scene >= OF_SCENES and not OF_SCENES & fit
    assert fit >= OF_FITS and not OF_FITS & scene
