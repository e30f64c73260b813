"""Copies of tensors to buffers by compiled code."""

import pytest
import torch

from torchdismech.native.compiled import Unavailable, library
from torchdismech.native.copies import Copies


def compiled() -> bool:
    """Return whether there is a compiler."""
    try:
        library()
    except Unavailable:
        return False
    return True


pytestmark = pytest.mark.skipif(not compiled(), reason="needs a C++ compiler")


def given() -> list[torch.Tensor]:
    """Return tensors of several types, one of them with no numbers."""
    numbers = torch.arange(12, dtype=torch.float64).view(3, 4)
    return [numbers, numbers.float() + 0.5, numbers > 5, torch.arange(3), torch.empty(0, 2)]


def test_numbers_are_copied():
    """Copy each tensor to its buffer, the next ones to the same buffers."""
    tensors = given()
    buffers = [torch.zeros_like(tensor) for tensor in tensors]
    copies = Copies.to(buffers)
    for factor in (1, 2):
        tensors = [tensor if tensor.dtype == torch.bool else tensor * factor for tensor in tensors]
        assert copies.made(tensors)
        for buffer, tensor in zip(buffers, tensors, strict=True):
            assert torch.equal(buffer, tensor)


def test_what_is_not_given_stays():
    """Leave the buffer of a None as it is."""
    tensors = given()
    buffers = [torch.zeros_like(tensor) for tensor in tensors]
    copies = Copies.to(buffers)
    assert copies.made([tensors[0], None, *tensors[2:]])
    assert torch.equal(buffers[0], tensors[0]) and not buffers[1].any()


def test_strided_tensors_are_left_to_others():
    """Copy nothing where a tensor is not contiguous."""
    tensors = given()
    buffers = [torch.zeros_like(tensor) for tensor in tensors]
    turned = tensors[0].t().contiguous().t()
    assert not Copies.to(buffers).made([turned, *tensors[1:]])
    assert not any(buffer.any() for buffer in buffers)


def test_other_devices_have_none():
    """Make no copies to memory that is not a CPU's."""
    assert Copies.to([torch.zeros(3), torch.zeros(3, device="meta")]) is None
