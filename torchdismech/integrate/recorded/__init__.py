"""Steps on a CPU as tapes, on a GPU as CUDA graphs: of whole steps, evaluations and gradients."""
