"""The pretended GPU refuses what a real one refuses, and keeps memory as one does."""

import pytest
import torch

from tests.pretended.gpu import pretended_gpu
from torchdismech.native.graphs import Unrecordable, memory_pool, recorded

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")


@pytest.fixture
def device():
    """Return what happens on a pretended GPU."""
    with pretended_gpu() as found:
        yield found


@pytest.mark.parametrize(
    "code",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.stack([x[0], torch.ones(())]),
        lambda x: x.index_select(0, torch.tensor([1])),
        lambda x: torch.ones(3)[(2 * x).long()],
        lambda x: torch.ones(()).add_(x[0]),
        lambda x: x.numpy(),
    ],
)
@pytest.mark.usefixtures("device")
def test_devices_do_not_mix(code):
    """Refuse operations, and numpy, between host and device."""
    with pytest.raises((RuntimeError, TypeError), match=r"device|host"):
        code(torch.zeros(3, device="cuda"))


@pytest.mark.parametrize(
    "code",
    [
        lambda x: x * x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x if bool((x > 0).all()) else -x,
        lambda x: x + torch.tensor([1.0, 2.0, 3.0], device="cuda"),
        lambda x: x + torch.ones(3).to(x.device),
        lambda x: x[torch.tensor([0, 2])],
        lambda x: x.clone().index_put_((x.long(),), torch.ones(())),
        lambda x: x.cpu(),
    ],
)
def test_code_that_waits_is_seen(code, device):
    """Note for what the host waits; no graph holds it."""
    x = torch.ones(3, device="cuda")
    code(x)
    assert len(device.waits) == 1
    with pytest.raises(Unrecordable, match="cannot be captured in a CUDA graph"):
        recorded(lambda: code(x), x.device, memory_pool(x.device))


@pytest.mark.usefixtures("device")
def test_graphs_run_on_the_same_memory():
    """Find for other numbers what the function finds; what nobody holds on to is garbage after a replay."""
    x, kept = torch.ones(3, device="cuda"), []

    def function():
        kept[:] = [(2 * x).numbers]  # this alone holds on to no memory of the device
        total = torch.zeros(3, device="cuda")
        total += 2 * x
        return total, total.view(3, 1)

    recording = recorded(function, x.device, memory_pool(x.device))
    assert recording.outputs[0].isnan().all()  # nothing has run yet
    for number in (3.0, 4.0):
        x.fill_(number)
        total, column = recording.replay()
        assert total.tolist() == [2 * number] * 3 and column[:, 0].tolist() == total.tolist()
        assert bool(kept[0].isnan().all())


@pytest.mark.usefixtures("device")
def test_autograd_crosses_devices():
    """Take gradients through moves, and in one pass for several seeds."""
    x = torch.ones(3, requires_grad=True)
    y = (x.to("cuda") ** 2).sum()
    (gradient,) = torch.autograd.grad(y, x)
    assert not gradient.is_cuda and gradient.tolist() == [2.0] * 3
    z = torch.ones(2, device="cuda").requires_grad_()
    seeds = torch.eye(2, device="cuda")
    (matrix,) = torch.autograd.grad(3 * z, z, seeds, is_grads_batched=True)
    assert matrix.is_cuda and matrix.tolist() == [[3.0, 0.0], [0.0, 3.0]]
