"""Systems of the user's, which a config names by their file: what they return is checked before it is used."""

import pytest

from tests.training.beams import tables
from torchdismech import InputError
from training.config import Config
from training.fitting import fit

SINKING = """
import torch
from training.system import Prediction, System
class Sinking(System):
    given, measured, anywhere = 1, False, False
    def __init__(self, config, recordings):
        super().__init__()
        self.speed = torch.nn.Parameter(torch.tensor(0.0))
    def group(self, name):
        return {"speed": self.speed} if name == "constants" else {}
    def predict(self, window, checkpoint_every=None):
        down = torch.tensor([0.0, 0.0, -1.0], dtype=torch.float64)
        positions = window.positions[:, :1] + self.speed * torch.arange(1, window.frames)[:, None, None] * down
        status = torch.zeros(len(positions), dtype=torch.long)
        return Prediction(positions, status, 0.0)
"""


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("Prediction(positions, ", "Prediction(positions[:, -1:], ", r"frames - given, M, 3\) = .*, got \(.*, 1, 4, 3"),
        ("Prediction(positions, ", "Prediction(positions[:, :, :1], ", "positions: expected a tensor of shape"),
        ("Prediction(positions, status, 0.0)", "positions", "expected a training.system.Prediction, got Tensor"),
        ("dtype=torch.long)", "dtype=torch.bool)", "status: expected whole numbers, Status.CONVERGED .*torch.bool"),
        ("Prediction(positions, ", "Prediction(positions.detach(), ", "do not depend on what it trains .constants."),
        ("window.frames", "window.length", "Sinking.predict raised AttributeError in line 13: 'Window' object"),
        ("torch.tensor(0.0))", "0.0)", "Sinking raised AttributeError in line 8: "),
        ("{}", "None", r"group\('learned'\): expected a dict of nn.Parameter by name, empty .*, got None"),
        ("anywhere = 1", "anywhere = 0", "given: expected one frame or more to start from, got 0"),
    ],
)
def test_what_a_system_of_the_user_returns_is_checked(folder, right, wrong, message):
    """Say what was expected and what came: shapes that broadcast would be compared with other frames and markers."""
    assert right in SINKING
    (folder / "mine.py").write_text(SINKING.replace(right, wrong, 1))
    mine = tables(folder, system=f"{folder}/mine.py:Sinking")
    del mine["robot"], mine["constants"]
    with pytest.raises(InputError, match=message):
        fit(Config.model_validate(mine), folder / "run", allow_code=True)
