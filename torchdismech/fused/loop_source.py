"""Generates the C++ source of a loop from a record."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchdismech.fused.record import Operation, Record

__all__ = ["INFIX", "PREFIX", "loop_source", "needed"]

NUMBERS = {torch.float64: "double", torch.float32: "float"}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
INFIX |= {"less": "<", "less_or_equal": "<=", "equal": "==", "both": "&", "either": "|"}
PREFIX = {"neg": "-", "not": "~"}
BEYOND = {"inf": "__builtin_inf()", "-inf": "-__builtin_inf()", "nan": '__builtin_nan("")'}

# Source of the function that is called. `inputs` are rows of five numbers (see `Input` in vectors.h); the values of
# spring s and robot b are written at s * robots + b, one row of values after the other. A vector holds robots of one
# spring; where there are too few robots to fill it, its lanes belong to several springs. The last vector overlaps the
# one before it, if there is one.
FRAME = """
namespace {{

inline void store(number* out, V v) {{ __builtin_memcpy(out, &v, sizeof v); }}

// A vector of each value, made of what lanes read; those of a row of values stand `size` numbers after those before.
// It stands in the code once, which is most of what is to be compiled.
__attribute__((noinline)) void evaluate(Sources in, int64_t start, int64_t size, number* first, number* second) {{
{body}
}}

void copy_some(const number* vectors, int64_t rows, int64_t start, int64_t count, int64_t size, number* to) {{
  for (int64_t row = 0; row < rows; ++row)
    __builtin_memcpy(to + row * size + start, vectors + row * LANES, count * sizeof(number));
}}

// The same, but for lanes from `count` on. (To write each value with a length that may vary takes a fourth longer.)
void evaluate_some(Sources in, int64_t start, int64_t count, int64_t size, number* first, number* second) {{
  number own_first[({firsts} + 1) * LANES], own_second[({seconds} + 1) * LANES];
  evaluate(in, 0, LANES, own_first, own_second);
  copy_some(own_first, {firsts}, start, count, size, first);
  copy_some(own_second, {seconds}, start, count, size, second);
}}

}}  // namespace

extern "C" int64_t lanes() {{ return LANES; }}

// From part `begin` up to `end`: parts are springs where robots fill vectors, else vectors.
extern "C" void fused(int64_t springs, int64_t robots, const int64_t* inputs, number* first, number* second,
                      int64_t begin, int64_t end) {{
  const int64_t size = springs * robots;
  Input in[{inputs}];
  V found[{inputs}];
  Source sources[{inputs}];
  for (int64_t k = 0; k < {inputs}; ++k) {{
    in[k] = Input{{reinterpret_cast<const number*>(inputs[5 * k]), inputs[5 * k + 1], inputs[5 * k + 2],
                  reinterpret_cast<const int64_t*>(inputs[5 * k + 3]), inputs[5 * k + 4]}};
    sources[k] = standing(found[k]);
  }}
  for (int64_t part = begin; part < end; ++part) {{
    if (robots >= LANES) {{
      int64_t gathered[{inputs}], many = 0;
      for (int64_t k = 0; k < {inputs}; ++k) {{
        bool apart;
        sources[k] = source_of(in[k], part, found[k], apart);
        if (apart) gathered[many++] = k;
      }}
      for (int64_t b = 0; b < robots; b += LANES) {{
        const int64_t robot = b + LANES <= robots ? b : robots - LANES;
        for (int64_t k = 0; k < many; ++k) found[gathered[k]] = read_at(in[gathered[k]], part, robot);
        evaluate(Sources{{sources, robot}}, part * robots + robot, size, first, second);
      }}
    }} else {{
      const int64_t most = size < LANES ? 0 : size - LANES, start = part * LANES < most ? part * LANES : most;
      const int64_t count = size < LANES ? size : LANES;
      const Places at(start, count, robots);
      for (int64_t k = 0; k < {inputs}; ++k) found[k] = read_at(in[k], at);
      if (count == LANES)
        evaluate(Sources{{sources, 0}}, start, size, first, second);
      else
        evaluate_some(Sources{{sources, 0}}, start, count, size, first, second);
    }}
  }}
}}
"""


def loop_source(record: Record, first: Sequence[int], second: Sequence[int], dtype: torch.dtype) -> str:
    """Return the source of a loop that computes two lists of values for all springs and robots.

    Parameters
    ----------
    first, second : the values, by their numbers in the record.
    """
    body = [f"  const auto v{k} = {_expression(record.operations[k])};" for k in needed(record, [*first, *second])]
    for name, values in (("first", first), ("second", second)):
        body += [f"  store({name} + {row} * size + start, v{value});" for row, value in enumerate(values)]
    sizes = {"inputs": max(len(record.inputs), 1), "firsts": len(first), "seconds": len(second)}
    code = FRAME.format(body="\n".join(body), **sizes)
    return f'typedef {NUMBERS[dtype]} number;\n#include "vectors.h"\n' + code


def needed(record: Record, wanted: Sequence[int]) -> list[int]:
    """Return the sorted numbers of the wanted values and of all values that they depend on.

    A value depends only on values with smaller numbers.
    """
    needed = [False] * len(record.operations)
    for value in wanted:
        needed[value] = True
    for value in range(len(needed) - 1, -1, -1):
        name, *of = record.operations[value]
        if needed[value] and name not in ("input", "number"):
            for operand in of:
                needed[operand] = True
    return [value for value, is_needed in enumerate(needed) if is_needed]


def _expression(operation: Operation) -> str:
    name, *of = operation
    if name in INFIX:
        return f"v{of[0]} {INFIX[name]} v{of[1]}"
    if name == "input":
        return f"in[{of[0]}]"
    if name == "number":
        return f"all(number({BEYOND.get(of[0], of[0])}))"
    operands = [f"v{k}" for k in of]
    return f"{PREFIX[name]}{operands[0]}" if name in PREFIX else f"{name}({', '.join(operands)})"
