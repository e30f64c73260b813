"""What a step costs, beside what a user would otherwise pick.

Every benchmark runs on one thread: what a batch costs on a core is what a farm of cores multiplies.
"""

import os

# Before torch and numpy are imported: their thread pools read it once.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"
