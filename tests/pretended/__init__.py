"""A GPU that is pretended, for machines without one: what a CPU can tell of the code for GPUs.

Tensors say that they are on "cuda" (`tensors.py`) and hold their numbers on the CPU. They refuse what a GPU would:
operations that mix devices, kernels that are given addresses of the CPU, and, while a graph is captured, whatever makes
the host wait. Graphs (`graphs.py`) replay what they captured on the same memory; what nobody holds on to after a
capture is filled with garbage, as other graphs of a pool get that memory. Kernels (`kernels.py`) are what compiled code
for a CPU and LAPACK find. `gpu.py` puts all of this in the place of what torch has for CUDA.

What only a GPU tells: whether kernels compute what they should (`tests/fused/test_kernel.py` and
`tests/solve/test_triton.py` have them interpreted), steps by torch.compile, streams, and how long anything takes.
"""
