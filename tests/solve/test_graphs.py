"""Functions recorded as CUDA graphs."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from tests.solve.stand_in import replayable
from tests.solve.topologies import chain, random_values
from torchdismech.errors import InputError
from torchdismech.native.graphs import WARM_UPS, Unrecordable, memory_pool, recorded
from torchdismech.solve import linear


def test_other_devices_are_refused():
    """Name the function and what came."""
    with pytest.raises(InputError, match=r"<lambda>: recordings are for a CPU or a CUDA device, got meta; call the"):
        recorded(lambda: None, torch.device("meta"), None)


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), torch.OutOfMemoryError, "CUDA out of memory."),
        (RuntimeError("operation not permitted"), Unrecordable, "it must not read numbers on the host"),
    ],
)
def test_what_ends_a_capture_is_named(error, expected, words, monkeypatch):
    """Tell apart a function that cannot be captured and a device that is too small, without a device.

    Meanwhile torch keeps to the decompositions that a graph can hold; afterwards it is as it was.
    """
    preferred = ["default"]
    monkeypatch.setattr(
        torch.backends.cuda,
        "preferred_linalg_library",
        lambda library=None: preferred[-1] if library is None else preferred.append(library),
    )
    for name in ("device", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: nullcontext())
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name in ("Stream", "current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, lambda: stream)
    runs = []

    def function():
        runs.append(preferred[-1])
        if len(runs) > WARM_UPS:
            raise error

    with pytest.raises(expected, match=words) as caught:
        recorded(function, torch.device("cuda"), None)
    assert type(caught.value) is expected
    assert runs == ["cusolver"] * (WARM_UPS + 1) and preferred[-1] == "default"


class TestStandIn:
    """The stand-in that other tests use on a CPU does what a graph does, and nothing better."""

    def test_old_memory_and_old_numbers(self):
        """Read what stands where the recorded tensors were, and the numbers of Python as they were."""
        x, factor = torch.ones(3), [2.0]
        replays = replayable(lambda: (factor[0] * x, x.clone().mul_(3)), x.device, None)
        assert replays.outputs[0].isnan().all()  # nothing has run yet
        x.fill_(5)
        factor[0] = 7.0
        double, triple = replays.replay()
        assert (double == 10).all()
        assert (triple == 15).all()
        assert replays.replay()[0] is double

    @pytest.mark.parametrize("code", [lambda x: x * x.sum().item(), lambda x: x[x > 0]])
    def test_code_that_waits_is_refused(self, code):
        """Say so as a graph does."""
        x = torch.ones(3)
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            replayable(lambda: code(x), x.device, None)


@pytest.mark.gpu
class TestOnGPU:
    """What is replayed."""

    device = torch.device("cuda")

    def test_new_numbers(self):
        """Give for other numbers what the function gives, in the same memory, without running its code again."""
        runs = []
        x = torch.ones(4, 4, device="cuda", dtype=torch.float64)

        def function():
            runs.append(1)
            return x @ x, x - 1

        recording = recorded(function, self.device, memory_pool(self.device))
        rng = torch.Generator("cuda").manual_seed(0)
        for _ in range(3):
            x.copy_(torch.randn(4, 4, device="cuda", dtype=torch.float64, generator=rng))
            product, less = recording.replay()
            torch.testing.assert_close(product, x @ x)
            assert torch.equal(less, x - 1)
            assert product is recording.outputs[0]
        assert len(runs) == 3  # two to warm up, one recorded

    def test_one_pool(self):
        """Hand tensors from one graph to the next in memory that they share for what they need on the way."""
        x, pool = torch.ones(1000, device="cuda"), memory_pool(self.device)
        first = recorded(lambda: (x + 1).sin().exp(), self.device, pool)
        second = recorded(lambda: (first.outputs * 2).sin().cos(), self.device, pool)
        for k in range(3):
            x.fill_(k)
            first.replay()
            torch.testing.assert_close(second.replay(), ((x + 1).sin().exp() * 2).sin().cos())

    @pytest.mark.parametrize("code", [lambda x: x * x.sum().item(), lambda x: x[x > 0]])
    def test_code_that_waits_is_refused(self, code):
        """Say what the function must not do."""
        x = torch.ones(3, device="cuda")
        with pytest.raises(InputError, match="cannot be captured in a CUDA graph .*; it must not read numbers"):
            recorded(lambda: code(x), self.device, memory_pool(self.device))

    @pytest.mark.parametrize("kind", ["definite", "unsymmetric"])
    @pytest.mark.parametrize(
        "options",
        [{"name": "banded"}, {"name": "banded", "method": "blocks"}, {"name": "multifrontal"}, {"name": "dense"}],
    )
    def test_solvers(self, options, kind):
        """Factor and solve in a graph, for other matrices than the recorded ones."""
        pattern = chain(31, symmetric=kind == "definite")
        solver = linear.make(pattern=pattern, **options)
        values = random_values(pattern, kind, 70, 0).cuda()
        rhs = torch.ones(70, pattern.n, dtype=torch.float64, device="cuda")
        rows = torch.ones(70, dtype=torch.bool, device="cuda")

        def solution():
            factor = solver.factor(values, rows)
            return factor.solve(rhs), factor.ok

        recording = recorded(solution, self.device, memory_pool(self.device))
        for seed in range(3):
            values.copy_(random_values(pattern, kind, 70, seed))
            rhs.fill_(1.0 + seed)
            rows.copy_(torch.arange(70) % (seed + 2) == 0)
            x, ok = recording.replay()
            expected, expected_ok = solution()
            assert torch.equal(ok, expected_ok)
            torch.testing.assert_close(x, expected, rtol=1e-12, atol=0)
