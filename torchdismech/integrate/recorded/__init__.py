"""Steps on a CPU as tapes, on a GPU as CUDA graphs: of whole steps, evaluations and gradients.

`recording.py` is the way in: whether a step is recorded, and what takes it. Below it

- *which steps one recording serves*: `step_kind.py`, `model_traits.py`; what models it can hold: `recordable.py`,
  `declared.py`;
- *what it reads*: `static_problem.py`, in the order that `inputs.py` names;
- *whole steps*: `step.py`, the rounds of their searches: `rounds.py`, many steps: `series.py`, searches that leave
  their rounds: `search_recordings.py`;
- *parts of steps*, where robots may touch themselves: `evaluations.py`, `recorded_call.py`,
  `equations.py`, `pair_evaluations.py`, `pair_rounds.py`;
- *backward passes*: `gradients.py`, `gradients_in_turn.py`, and one of them: `adjoint.py`.
"""
