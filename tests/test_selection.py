"""Slices that an index selects."""

import numpy as np
import pytest
import torch

from torchdismech.selection import first_of_run, selected


@pytest.mark.parametrize("index, first", [([2, 3, 4], 2), ([5], 5), ([4, 3, 2], None), ([0, 1, 1], None), ([], None)])
def test_selected(index, first):
    """Give what `index_select` gives, as a view where the index counts up one by one."""
    x, tensor = torch.arange(24.0).reshape(2, 6, 2), torch.tensor(index, dtype=torch.int64)
    assert first_of_run(np.array(index, dtype=np.int64)) == first
    found = selected(x, 1, tensor, first)
    assert torch.equal(found, x.index_select(1, tensor))
    assert (found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) == (first is not None)
