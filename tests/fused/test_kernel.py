"""Programs as kernels for GPUs: interpreted on a CPU against loops there, and on a GPU."""

import importlib.util
import math
import sys

import numpy as np
import pytest
import torch

from tests.elastic.test_fused import BATCH, magnet, network, planar, shell
from torchdismech import Control, InputError
from torchdismech.elastic import fused as fused_terms
from torchdismech.fused import Fused, differentiated, making, program_of
from torchdismech.native import gpu

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-4}  # some hundred operations, each of which rounds


class Interpreted:
    """What stands in for Triton's `libdevice`, which its interpreter does not know: numpy's functions."""

    names = {"atan2": "arctan2"}

    def __getattr__(self, name):
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        def called(*given):
            found = getattr(np, self.names.get(name, name))(*[tensor.handle.data for tensor in given])
            return tl.core.tensor(TensorHandle(found, given[0].handle.dtype), given[0].type)

        return staticmethod(called).__func__


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels that Triton interprets, so that they run on CPU tensors; other tests get them as they were."""
    module = "torchdismech.native.triton_kernels"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(gpu.kernels, "outcome", None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(making, "_programs", {})
    libraries = gpu.Kernels.libraries
    monkeypatch.setattr(gpu.Kernels, "libraries", lambda self: (libraries(self)[0], Interpreted()))
    yield
    sys.modules.pop(module, None)


def written(program, springs, robots, leaves):
    """Return both lists of a program, (values, springs, B)."""
    lists = [leaves[0].new_full((count * springs, robots), math.nan) for count in program.counts]
    program.write(springs, program.read_among(leaves), *lists)
    return [part.unflatten(0, (-1, springs)) if len(part) else part for part in lists]


def random(*shape, dtype=torch.float64, low=0.5, high=2.0):
    """Return numbers of a fixed sequence."""
    generator = torch.Generator().manual_seed(3)
    return (low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)).to(dtype)


def everything(a, b, rows, index, number):
    """Return values by every operation that a program may hold."""
    x = rows[index]
    return [
        a + b * number - x,
        a / b + torch.sqrt(x) + a**3,
        torch.sin(a) * torch.cos(b) + torch.atan2(a - 1.0, b - 1.0),
        torch.maximum(a, b) - torch.minimum(a, x) + torch.abs(a - b) + torch.round(3.0 * a),
        torch.where((a < b) & (b <= x) | ~(a == b), torch.exp(a) - torch.expm1(b), torch.log(a)),
        torch.tanh(a) + torch.sigmoid(b) + torch.nn.functional.softplus(a, 1.0, 1.5),
        torch.full_like(a, 0.1) * a + torch.zeros_like(a),
    ]


def leaves_of(springs, robots, dtype):
    """Return what `everything` reads."""
    index = torch.arange(springs).flip(0) + 1
    return [
        random(springs, robots, dtype=dtype),
        random(springs, 1, dtype=dtype),
        random(springs + 2, robots, dtype=dtype),
        index,
        torch.tensor(0.7, dtype=dtype),
    ]


def assert_same(found, expected, dtype):
    """Compare lists of values."""
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


@needs_triton
@pytest.mark.usefixtures("interpreted")
class TestInterpreted:
    """What kernels compute."""

    @pytest.mark.parametrize("dtype", ROUNDING, ids=str)
    @pytest.mark.parametrize(("springs", "robots"), [(1, 1), (5, 1), (3, 70), (200, 2)])
    def test_every_operation(self, springs, robots, dtype):
        """Find what the loop finds, where the last lanes are idle, too."""
        leaves = leaves_of(springs, robots, dtype)
        shapes = [tuple(leaf.shape) for leaf in leaves]
        of = [program_of(lambda given: (everything(*given), [given[0]]), shapes, dtype, d) for d in ("cuda", "cpu")]
        assert_same(*[written(program, springs, robots, leaves) for program in of], dtype)

    @pytest.mark.parametrize("robot", [network, planar, magnet, shell, lambda: shell("midedge")])
    @pytest.mark.parametrize("asked", ["strains", "gradient", "hessian", "parts"])
    def test_terms(self, robot, asked, monkeypatch):
        """Find strains, gradients, Hessians and energies of the library's terms."""
        model = robot().finalize(compile=False)
        state = model.initial_state(batch=BATCH)
        q = (state.q + 1e-3 * random(*state.q.shape)).t().contiguous()
        constants = model.mechanics.term_constants(state, Control(), None)
        on_cpu = fused_terms.program_of
        monkeypatch.setattr(fused_terms, "program_of", lambda f, shapes, dtype, _: on_cpu(f, shapes, dtype, "cuda"))
        for k, (term, constant) in enumerate(zip(model.terms, constants, strict=False)):
            wanted = model.layout.elastic._wanted[k]
            kernels = fused_terms.FusedTerm(wanted).program(term, q, constant, asked)
            loops = model.layout.elastic._fused[k]
            with monkeypatch.context() as patch:
                patch.setattr(fused_terms, "program_of", on_cpu)
                loops = loops.program(term, q, constant, asked)
            found, expected = (program.values(springs, BATCH, read) for program, springs, read in (kernels, loops))
            for one, other in zip(found, expected, strict=True):
                # of numbers up to that size; angles are small differences of large ones
                torch.testing.assert_close(
                    one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()) if len(other) else 0
                )

    def test_other_sizes_are_refused(self):
        """Name what does not fit."""
        program = program_of(lambda given: ([given[0] + given[1]], []), [(4, 1), (1, 3)], torch.float64, "cuda")
        with pytest.raises(InputError, match="a constant of 4 springs does not fit 5"):
            written(program, 5, 3, [random(4, 1), random(1, 3)])
        with pytest.raises(InputError, match="a constant of 3 robots does not fit 2"):
            written(program, 4, 2, [random(4, 1), random(1, 3)])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize(("springs", "robots"), [(1, 1), (3, 70), (200, 2)])
def test_on_a_gpu(springs, robots, dtype):
    """Find on a GPU what the loop finds on a CPU, and the same gradients."""
    leaves = leaves_of(springs, robots, dtype)
    fused, lists = Fused(everything, "everything"), []
    for device in ("cpu", "cuda"):
        given = [leaf.to(device).requires_grad_(leaf.is_floating_point()) for leaf in leaves]
        with differentiated():
            assert fused.program(given) is not None
            values = fused(springs, *given)
        gradients = torch.autograd.grad(values.sum(), [given[k] for k in (0, 1, 2, 4)])
        lists.append([x.detach().cpu() for x in (values, *gradients)])
    assert_same(*lists, dtype)
