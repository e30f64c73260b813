"""What drives robots from scenes: columns of recordings by linear maps and by modules."""

import numpy as np
import pytest
import torch

from tests.training.beams import SCENE, system_of, tables, window_of
from torchdismech import InputError
from training.config import Config
from training.data import read
from training.robots.systems import build
from training.splits import prepared_recordings


def test_inputs_drive_the_robot_by_a_linear_map(folder):
    """Pull the tip up and down by a force that a column tells, and pass gradients to the gain."""
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}
    drives = {"tip": {"sets": "force", "elements": [11], "gain": 2e-4}}
    constants = {"gain": {"tensors": ["tip.gain"], "kind": "shift", "unit": 0.01}}
    start = {"state": "settled"}
    system = system_of(folder, data=data, drives=drives, constants=constants, start=start)
    tip = system.predict(window_of(folder, inputs=("pull",))).positions[:, -1, 3, 2]
    assert tip[1] > tip[0] > tip[2]
    up, down = float((tip[1] - tip[0]).detach()), float((tip[0] - tip[2]).detach())
    assert up == pytest.approx(down, rel=0.02)  # 0.2 mN bend it by less than a hundredth of its length
    (slope,) = torch.autograd.grad(tip[1], list(system.group("constants").values()))
    (parameter,) = system.group("constants").values()
    step = 1e-4
    with torch.no_grad():
        ends = []
        for sign in (1, -1):
            parameter.fill_(sign * step)
            ends.append(system.predict(window_of(folder, inputs=("pull",))).positions[1, -1, 3, 2])
    # central differences: their error is that of Newton's method over the step
    assert float(slope) == pytest.approx(float(ends[0] - ends[1]) / (2 * step), rel=1e-3)


def test_columns_that_a_recording_lacks_are_named(folder):
    """Name the key that is not there, and inputs that end before the recording does."""
    with pytest.raises(
        InputError, match="no input 'push'; expected a key train_push or push; it has: train, train_pull"
    ):
        read(folder / "beam.npz", "train", inputs=("push",))
    data = dict(np.load(folder / "beam.npz"))
    np.savez(folder / "short.npz", **(data | {"train_pull": data["train_pull"][:, :4]}))
    with pytest.raises(InputError, match="train_pull: .*6 frames: inputs have to cover the recording; got the shape"):
        read(folder / "short.npz", "train", inputs=("pull",))
    rows = ["time,x0,y0,z0,p", "0,0,0,0,1", "0.1,0,0,0,", "0.2,0,0,0,3"]
    (folder / "a.csv").write_text("\n".join(rows))
    with pytest.raises(InputError, match="column 'p' has no number in frame 1; inputs have to cover"):
        read(folder / "a.csv", inputs=("p",))
    with pytest.raises(InputError, match="no column 'q'.*there are: time, x0, y0, z0, p"):
        read(folder / "a.csv", inputs=("q",))


def test_users_module_drives_and_is_trained(folder):
    """Call a module of the user's with inputs and time, and train its parameters as learned ones."""
    (folder / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, columns: int, elements: int, size: float = 1.0):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(columns, elements, dtype=torch.float64)\n"
        "    def forward(self, inputs, time):\n"
        "        return self.layer(inputs) * time[..., None]\n"
    )
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}
    module = {"sets": "force", "elements": [10, 11], "module": f"{folder}/net.py:Net", "options": {"size": 2.0}}
    config = Config.model_validate(tables(folder, data=data, drives={"tip": module}))
    system = build(config, prepared_recordings(config, "train")[0], allow_code=True)
    positions = system.predict(window_of(folder, inputs=("pull",))).positions
    learned = system.group("learned")
    assert set(learned) == {"tip.layer.weight", "tip.layer.bias"}
    assert all(
        g.abs().max() > 0 for g in torch.autograd.grad(positions[:, -1, 3, 2].square().sum(), list(learned.values()))
    )


def test_a_drive_without_a_gain_is_refused_unless_it_is_trained(folder):
    """Refuse a map that leaves all as it is; it made fits that explain nothing, and said so at their end."""
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}
    idle = {"sets": "force", "elements": [11]}
    for drive in (idle, {**idle, "gain": 0.0}, {**idle, "gain": [[0.0]], "offset": [0.0]}):
        with pytest.raises(InputError, match="drives.tip: its gain is zero, and nothing trains it"):
            system_of(folder, data=data, drives={"tip": drive})
    for drive in ({**idle, "gain": 1.0}, {**idle, "offset": 1.0}, {"sets": "force", "relative": False}):
        system_of(folder, data=data, drives={"tip": drive})
    for tensor in ("tip.gain", "tip.offset"):
        constants = {"tip": {"tensors": [tensor], "kind": "shift", "unit": 1.0}}
        system_of(folder, data=data, drives={"tip": idle}, constants=constants)


def test_what_a_users_module_raises_is_said_with_its_line(folder):
    """Name the drive, the file and its line, where the module is made and where it is called."""
    net = "import torch\nclass Net(torch.nn.Module):\n    def __init__(self, columns, elements):\n        {}\n"
    called = "super().__init__()\n    def forward(self, inputs, time):\n        return self.layer(inputs)"
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}
    config = Config.model_validate(
        tables(folder, data=data, drives={"tip": {"sets": "force", "module": f"{folder}/net.py:Net"}})
    )
    recordings = prepared_recordings(config, "train")[0]
    (folder / "net.py").write_text(net.format("self.layer = torch.nn.Linear(columns, elements)"))
    with pytest.raises(InputError, match=r"drives.tip.module: .*net.py:Net raised AttributeError in line 4: "):
        build(config, recordings, allow_code=True)
    (folder / "net.py").write_text(net.format(called))
    system = build(config, recordings, allow_code=True)
    with pytest.raises(InputError, match=r"drives.tip.module: .*net.py:Net raised AttributeError in line 6: "):
        system.predict(window_of(folder, inputs=("pull",)))


def test_columns_drive_constants_of_the_model(folder):
    """Let a column thicken the fluid; gradients reach the map's constants."""
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}
    drives = {"fluid": {"sets": "Viscous.viscosity", "columns": ["pull"], "gain": 0.05}}
    constants = {"fluid": {"tensors": ["fluid.gain", "fluid.offset"], "kind": "shift", "unit": 0.01}}
    system = system_of(folder, data=data, drives=drives, constants=constants)
    window = window_of(folder, inputs=("pull",))  # inputs 0, 1, -1: viscosities 0.05, 0.1, 0
    fallen = -system.predict(window).positions[:, -1, 3, 2]
    assert fallen[2] > fallen[0] > fallen[1]
    (gradient,) = torch.autograd.grad(fallen.sum(), list(system.group("constants").values()))
    assert float(gradient) < 0  # in a thicker fluid all fall less far


def test_columns_drive_tendons_and_chambers(folder):
    """Pull a tendon above the beam, and blow up a chamber above it: one bends it up, the other down."""
    tendon = "[[tendon]]\nnodes = [1, 2, 3]\noffset = [0.0, 0.0, 0.01]\ntension = 0.1\n"
    chamber = "[[chamber]]\nnodes = [1, 2, 3]\noffset = [0.0, 0.0, 0.01]\narea = 1e-4\npressure = 10.0\n"
    (folder / "beam.toml").write_text(SCENE + tendon + chamber)
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}
    for sets, gain, sign in (("Tendons.tension", 0.1, 1), ("Chambers.pressure", 1e3, -1)):
        drives = {"air": {"sets": sets, "gain": gain}}
        constants = {"air": {"tensors": ["air.gain"], "kind": "shift", "unit": gain}}
        system = system_of(folder, data=data, drives=drives, constants=constants)
        tip = system.predict(window_of(folder, inputs=("pull",))).positions[:, -1, 3, 2]  # inputs 0, 1, -1
        assert float(sign * (tip[1] - tip[0]).detach()) > 1e-5
        (gradient,) = torch.autograd.grad(tip[1], list(system.group("constants").values()))
        assert sign * float(gradient) > 0
