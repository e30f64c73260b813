"""What was recorded, as C++."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from torchdismech.fused.symbols import Operation, Record

__all__ = ["source"]

VECTORS = Path(__file__).parent.parent / "native" / "vectors.h"
NUMBERS = {torch.float64: "double", torch.float32: "float"}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
INFIX |= {"less": "<", "less_or_equal": "<=", "equal": "==", "both": "&", "either": "|"}
PREFIX = {"neg": "-", "not": "~"}
BEYOND = {"inf": "INFINITY", "-inf": "-INFINITY"}

# What is called: `inputs` are rows of five numbers (see `Input` in vectors.h), values of spring s and robot b stand at
# s * robots + b, one row of values after the other. Robots of one spring are taken a vector at a time, the last one
# overlapping that before it; where they are too few to fill a vector, lanes are of several springs.
FRAME = """
namespace {{

__attribute__((noinline)) void store_some(number* out, int64_t count, V v) {{
  std::memcpy(out, &v, count * sizeof(number));
}}

// A loop of a rod's bending takes a fifth less where it writes whole vectors as such.
inline void store(number* out, int64_t start, int64_t count, V v) {{
  if (count == LANES)
    std::memcpy(out + start, &v, sizeof v);
  else
    store_some(out + start, count, v);
}}

void evaluate(const Input* in, const At& at, int64_t start, int64_t count, int64_t size, number* first,
              number* second) {{
{body}
}}

}}  // namespace

extern "C" int64_t lanes() {{ return LANES; }}

// From part `begin` up to `end`: parts are springs where robots fill vectors, else vectors.
extern "C" void fused(int64_t springs, int64_t robots, const int64_t* inputs, number* first, number* second,
                      int64_t begin, int64_t end) {{
  Input in[{inputs}];
  for (int64_t k = 0; k < {inputs}; ++k)
    in[k] = Input{{reinterpret_cast<const number*>(inputs[5 * k]), inputs[5 * k + 1], inputs[5 * k + 2],
                  reinterpret_cast<const int64_t*>(inputs[5 * k + 3]), inputs[5 * k + 4]}};
  const int64_t size = springs * robots;
  At at;
  at.along = robots >= LANES;
  for (int64_t part = begin; part < end; ++part) {{
    if (at.along) {{
      at.s[0] = part;
      for (int64_t b = 0; b < robots; b += LANES) {{
        at.b[0] = b + LANES <= robots ? b : robots - LANES;
        evaluate(in, at, part * robots + at.b[0], LANES, size, first, second);
      }}
    }} else {{
      const int64_t start = part * LANES, count = size - start < LANES ? size - start : LANES;
      for (int64_t k = 0; k < LANES; ++k) {{
        const int64_t number_of = k < count ? start + k : size - 1;
        at.s[k] = number_of / robots;
        at.b[k] = number_of % robots;
      }}
      evaluate(in, at, start, count, size, first, second);
    }}
  }}
}}
"""


def source(record: Record, first: Sequence[int], second: Sequence[int], dtype: torch.dtype) -> str:
    """Return code that finds two lists of values for all springs and robots."""
    body = [f"  const auto v{k} = {_expression(record.operations[k])};" for k in _needed(record, [*first, *second])]
    for name, values in (("first", first), ("second", second)):
        body += [f"  store({name} + {row} * size, start, count, v{value});" for row, value in enumerate(values)]
    code = FRAME.format(body="\n".join(body), inputs=max(len(record.inputs), 1))
    return f"typedef {NUMBERS[dtype]} number;\n" + VECTORS.read_text() + code


def _needed(record: Record, wanted: Sequence[int]) -> list[int]:
    """Return the values that the wanted ones are made of, in order."""
    needed, left = set(), list(wanted)
    while left:
        value = left.pop()
        if value not in needed:
            needed.add(value)
            left += _operands(record.operations[value])
    return sorted(needed)


def _operands(operation: Operation) -> tuple[int, ...]:
    return () if operation[0] in ("input", "number") else operation[1:]


def _expression(operation: Operation) -> str:
    name, *of = operation
    if name == "input":
        return f"load(in[{of[0]}], at)"
    if name == "number":
        return f"all(number({BEYOND.get(of[0], of[0])}))"
    operands = [f"v{k}" for k in of]
    if name in INFIX:
        return f" {INFIX[name]} ".join(operands)
    return f"{PREFIX[name]}{operands[0]}" if name in PREFIX else f"{name}({', '.join(operands)})"
