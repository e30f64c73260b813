"""Memory that stays where it is, for tensors that are given anew each time."""

import pytest
import torch

from torchdismech.native import buffers as module
from torchdismech.native.buffers import StaticBuffers


@pytest.fixture(params=["compiled", "torch"])
def code(request, monkeypatch):
    """Copy by compiled code where there is some, and by torch."""
    if request.param == "torch":
        monkeypatch.setattr(module._Copies, "to", staticmethod(lambda buffers: None))


def given(factor: int = 1) -> list[torch.Tensor]:
    """Return tensors of several types, one of them with no numbers."""
    numbers = factor * torch.arange(12, dtype=torch.float64).view(3, 4)
    return [numbers, numbers.float() + 0.5, numbers > 5, factor * torch.arange(3), torch.empty(0, 2)]


def test_numbers_are_copied(code):
    """Copy each tensor to its buffer, the next ones to the same memory."""
    buffers = StaticBuffers(given())
    places = [buffer.data_ptr() for buffer in buffers.tensors]
    for factor in (1, 2):
        buffers.give(given(factor))
        assert all(map(torch.equal, buffers.tensors, given(factor)))
    assert places == [buffer.data_ptr() for buffer in buffers.tensors]


def test_what_is_not_given_stays(code):
    """Leave the buffer of a None as it is, and buffers that are not read."""
    buffers = StaticBuffers(given())
    buffers.give(given())
    buffers.give([None, *given(2)[1:]])
    assert torch.equal(buffers.tensors[0], given()[0]) and torch.equal(buffers.tensors[1], given(2)[1])
    buffers.read_by(frozenset(buffers.tensors[k].untyped_storage().data_ptr() for k in (0, 3)))
    buffers.give(given(3))
    assert torch.equal(buffers.tensors[0], given(3)[0]) and torch.equal(buffers.tensors[3], given(3)[3])
    assert torch.equal(buffers.tensors[1], given(2)[1])


def test_strided_tensors_are_copied(code):
    """Take the numbers of tensors that are not contiguous in their order: turned, and one number for all."""
    turned = given()[0].t().contiguous().t()
    alike = torch.tensor(2.0).expand(3, 4)
    plain = given(3)[0]
    buffers = StaticBuffers([turned, plain, alike])
    assert all(buffer.is_contiguous() for buffer in buffers.tensors)
    buffers.give([turned, plain, alike])
    assert all(map(torch.equal, buffers.tensors, [turned, plain, alike]))
    buffers.give([None, 2 * plain, 3 * alike])
    assert all(map(torch.equal, buffers.tensors, [turned, 2 * plain, 3 * alike]))
