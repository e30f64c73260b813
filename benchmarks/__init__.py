"""Benchmarks of a step's cost, beside other simulators that a user could take instead: the peers.

Every benchmark runs on one thread, as the cost of a batch on one core tells what many cores can do. A robot-step is a
step of one robot.
"""

import os

# Before torch and numpy are imported: their thread pools read it once.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"
