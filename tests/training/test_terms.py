"""Learned terms of the user's, which a config names by their file."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from tests.training.beams import tables, window_of
from torchdismech import InputError
from training.config import Config, load
from training.fitting import fit
from training.optimization import checkpoint
from training.optimization.fingerprints import fingerprints
from training.robots.systems import build
from training.splits import prepared_recordings

TERMS = """
import torch
from torchdismech.elastic import Energy
from torchdismech.forces import LocalForce
class Pull(LocalForce):
    "A network of float32, as torch makes them."
    def __init__(self, size: float = 1e-3):
        super().__init__(reach=0)
        self.size, self.layer = size, torch.nn.Linear(3, 3)
    def nodal_force(self, state, control):
        return self.size * self.layer(state.node_velocities)
class Stiffer(Energy):
    def __init__(self):
        super().__init__()
        self.share = torch.nn.Parameter(torch.tensor(0.1))
    def density(self, strain):
        return 1e-4 * self.share * strain[0].square()
class Weight(LocalForce):
    def __init__(self):
        super().__init__(reach=0)
    def nodal_force(self, state, control):
        return 0 * state.node_velocities
"""


def test_users_forces_and_energies_are_learned(folder):
    """Put both into the step by name, in float64; let gradients reach them, and know the file again."""
    (folder / "mine.py").write_text(TERMS)
    terms = {
        "pull": {"kind": "force", "network": f"{folder}/mine.py:Pull", "options": {"size": 2e-3}},
        "more": {"kind": "energy", "network": f"{folder}/mine.py:Stiffer"},
    }
    config = Config.model_validate(tables(folder, terms=terms))
    with pytest.raises(InputError, match="runs code from .*mine.py:Pull: pass --allow-code"):
        build(config, prepared_recordings(config, "train")[0])
    system = build(config, prepared_recordings(config, "train")[0], allow_code=True)
    learned = system.group("learned")
    assert set(learned) == {"pull.layer.weight", "pull.layer.bias", "more.share"}
    moved = system.predict(window_of(folder)).positions[:, -1, 3].square().sum()
    assert all(float(g.abs().max()) > 0 for g in torch.autograd.grad(moved, list(learned.values())))
    assert set(fingerprints(config)) == {"robot.scene", "terms.pull.network", "terms.more.network"}


def test_network_of_the_page_is_learned(folder, monkeypatch):
    """Fit the network that docs/training.md writes as an example."""
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    blocks = (block.split("```")[0] for block in page.split("```python\n")[1:])
    (folder / "net.py").write_text(next(block for block in blocks if "class Drag" in block))
    monkeypatch.chdir(folder)
    terms = {"drag": {"kind": "force", "network": "net.py:Drag", "options": {"hidden": 8}}}
    stages = [{"name": "one", "train": ["learned"], "iterations": 1, "horizon": [2], "batch": 2}]
    fit(
        Config.model_validate(tables(folder, terms=terms, constants={}, stages=stages)), folder / "run", allow_code=True
    )
    assert checkpoint.load(folder / "run", "last")[1]["progress"]["skipped"] == 0


def test_checkpoints_of_several_forces_hold_no_robot(folder):
    """Fit two learned forces, which share the robot's body: a checkpoint holds their weights, and one with it loads."""
    options = {"hidden": [2]}
    terms = {k: {"kind": "force", "network": "DragLaw", "options": options} for k in ("first", "second")}
    stages = [{"name": "one", "train": ["learned"], "iterations": 1, "horizon": [2], "batch": 2}]
    config = Config.model_validate(tables(folder, terms=terms, constants={}, stages=stages))
    fit(config, folder / "run")
    tensors, _ = checkpoint.load(folder / "run", "best")
    assert tensors and not [name for name in tensors if "body" in name]
    system = build(config, prepared_recordings(config, "train")[0])
    system.take(tensors | {"buffer/first.body.mass": system.model.body.mass}, folder)  # as earlier versions wrote


def test_a_mass_is_trained_beside_a_learned_force(folder):
    """Fit masses, then a force that shares the robot's body: a stage that trains the force leaves the masses alone."""
    terms = {"drag": {"kind": "force", "network": "DragLaw", "options": {"hidden": [2]}}}
    stages = [
        {"name": group, "train": [group], "iterations": 1, "horizon": [2], "batch": 2}
        for group in ("constants", "learned")
    ]
    constants = {"mass": {"tensors": ["mass"]}}
    fit(Config.model_validate(tables(folder, terms=terms, constants=constants, stages=stages)), folder / "run")
    before, after = (checkpoint.load(folder / "run", name)[0] for name in ("after-constants", "last"))
    assert not [name for name in after if name.startswith("learned.") and "mass" in name]
    assert float(before["constants.mass.log_factor"]) != 0
    assert torch.equal(before["constants.mass.log_factor"], after["constants.mass.log_factor"])


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("Pull", "expected one of DragLaw, .*, or \"file.py:Name\", got 'Pull'"),
        ("mine.py:Stiffer", "expected a class derived from Force in mine.py, got <class"),
        ("mine.py:Weight", "terms.pull: mine.py:Weight has no parameters: there is nothing to learn"),
    ],
)
def test_what_is_no_learned_force_is_refused(folder, monkeypatch, network, message):
    """Name the term, what was expected and what came."""
    (folder / "mine.py").write_text(TERMS)
    monkeypatch.chdir(folder)
    config = Config.model_validate(tables(folder, terms={"pull": {"kind": "force", "network": network}}))
    with pytest.raises(InputError, match=message):
        build(config, prepared_recordings(config, "train")[0], allow_code=True)


@pytest.mark.parametrize("name", ["bend", "twist", "stretch"])
def test_names_of_energies_that_rods_have_are_refused(folder, name):
    """Name the term, not the scene, where a learned energy is called as one of the rods' own."""
    config = Config.model_validate(tables(folder, terms={name: {"kind": "energy", "network": "ResidualEnergy"}}))
    with pytest.raises(InputError, match=f"^terms.{name}: expected a name that no energy of the rods has"):
        build(config, prepared_recordings(config, "train")[0])


def test_what_a_constructor_of_the_user_raises_is_said_with_its_line(folder, monkeypatch):
    """End in a sentence that names the term, the file and its line, not in a traceback of the library."""
    (folder / "mine.py").write_text(TERMS.replace("torch.nn.Linear(3, 3)", "torch.nn.Linear(3)"))
    monkeypatch.chdir(folder)
    config = Config.model_validate(tables(folder, terms={"pull": {"kind": "force", "network": "mine.py:Pull"}}))
    with pytest.raises(InputError, match=r"terms.pull: mine.py:Pull raised TypeError in line 9: .*'out_features'"):
        build(config, prepared_recordings(config, "train")[0], allow_code=True)


def test_code_of_a_term_is_a_file_and_a_name(folder):
    """Refuse what is neither when the config is read."""
    with pytest.raises(ValidationError, match='expected "file.py:Name"'):
        Config.model_validate(tables(folder, terms={"pull": {"kind": "force", "network": "mine.txt:Pull"}}))


def test_faults_in_a_term_are_those_of_its_file(folder, monkeypatch):
    """Name the config, the term, its file and line where a force cannot be evaluated; the scene has no part in it."""
    (folder / "net.py").write_text(TERMS.replace("self.layer(state.node_velocities)", "self.layer(state.speeds)"))
    monkeypatch.chdir(folder)
    tabled = tables(folder, terms={"pull": {"kind": "force", "network": "net.py:Pull"}})
    (folder / "net.json").write_text(json.dumps(tabled))
    config = load("net.json")
    with pytest.raises(
        InputError,
        match=r"^net.json: terms.pull.network: net.py:Pull in line 11: Pull: cannot be evaluated .* 'speeds'",
    ):
        build(config, prepared_recordings(config, "train")[0], allow_code=True)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"terms": {"pull": {"kind": "force", "network": "net.py:Pull"}}}, "terms.pull.network"),
        ({"drives": {"tip": {"sets": "force", "module": "net.py:Pull"}}}, "drives.tip.module"),
        ({"system": "net.py:Pull", "robot": None, "constants": {}}, "system"),
    ],
    ids=["term", "drive", "system"],
)
def test_code_that_does_not_run_is_said_with_the_file_of_the_config(folder, monkeypatch, changes, key):
    """Name the config's file and key; the code is looked for in the working directory, not beside the config."""
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}
    (folder / "fits").mkdir()
    (folder / "fits" / "net.json").write_text(json.dumps(tables(folder, data=data, **changes)))
    (folder / "net.py").write_text("1 / 0\n")
    monkeypatch.chdir(folder)
    config = load("fits/net.json")
    with pytest.raises(InputError, match=rf"^fits/net.json: {key}: net.py does not run: ZeroDivisionError in line 1"):
        build(config, prepared_recordings(config, "train")[0], allow_code=True)
