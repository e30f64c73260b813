"""The numbers of a model as data: the places of its tensors, tensors that stand in for them, and which numbers may."""

from torchdismech.values.bounds import (
    problem_of_bounds,
    refuse_no_robots,
    refuse_out_of_bounds,
    refuse_table,
    refuse_unfitting,
)
from torchdismech.values.exchange import originals_in_place, others_stand_in
from torchdismech.values.given import Given, numbers, tensor_of, untrained
from torchdismech.values.in_place import Values, evaluated, leading, per_robot, requiring_gradients, with_rows
from torchdismech.values.places import (
    Place,
    batch_sizes,
    constants_in_words,
    every_module,
    places_by_batch_size,
    row_of,
    tensor_at,
    tensors_of,
)
from torchdismech.values.rows import split, where_rows

__all__ = [
    "Given",
    "Place",
    "Values",
    "batch_sizes",
    "constants_in_words",
    "evaluated",
    "every_module",
    "leading",
    "numbers",
    "originals_in_place",
    "others_stand_in",
    "per_robot",
    "places_by_batch_size",
    "problem_of_bounds",
    "refuse_no_robots",
    "refuse_out_of_bounds",
    "refuse_table",
    "refuse_unfitting",
    "requiring_gradients",
    "row_of",
    "split",
    "tensor_at",
    "tensor_of",
    "tensors_of",
    "untrained",
    "where_rows",
    "with_rows",
]
