"""The cantilever in dismech-newton, run by a Python of its own: a job as JSON on stdin, what it cost as JSON on stdout.

dismech-newton (``pip install dismech-newton``, GPL-3.0) steps discrete elastic rods on NVIDIA Warp: implicit Euler
solved by a fixed number of ADMM iterations, with a state in float32 and no tolerance. It is installed apart
(``make peers``), and nothing of the project is imported here but this file. It needs Python 3.14, whose annotations
are not evaluated where they are written; see `import_peer` for what older ones need.
"""

import contextlib
import io
import json
import os
import resource
import sys
import tempfile
import time
from importlib.metadata import version
from typing import Any

import numpy as np


def import_peer() -> Any:
    """Return the package; before Python 3.14, give Warp's structs the operator that its `Struct | None` needs."""
    from warp._src.codegen import Struct

    if sys.version_info < (3, 14):
        Struct.__or__ = lambda self, other: object
    import dismech_newton

    return dismech_newton


def cantilevers(job: dict[str, Any]) -> Any:
    """Return Newton's model: one chain a robot, two nodes and the twist between them held, no proxies, no contact."""
    import newton

    peer = import_peer()
    builder = newton.ModelBuilder(up_axis=newton.Axis.Z, gravity=(0.0, 0.0, -job["gravity"]))
    section = newton.ModelBuilder.ShapeConfig(density=job["density"])
    points = np.linspace([0.0, 0.0, 0.0], [job["length"], 0.0, 0.0], job["nodes"])
    for youngs in job["youngs"]:
        # by its shear modulus, as Newton refuses Poisson's ratio of exactly 0.5
        rod = newton.Rod(points, radius=job["radius"], youngs_modulus=youngs, shear_modulus=youngs / 3.0)
        edges = peer.add_rod(builder, rod, cfg=section, proxies=False, collide=False)
        peer.fix_segment(builder, edge=edges[0])
    return builder.finalize(device="cpu")


def stepped(model: Any, job: dict[str, Any], iterations: int, steps: int) -> tuple[float, np.ndarray]:
    """Return the CPU seconds of some steps with a number of iterations each, and the tips (steps, B, 3)."""
    solver = import_peer().DiSMechSolver(model, iterations=iterations, exact=job["exact"], self_contact=False)
    state, after, tips = model.state(), model.state(), []
    began = time.process_time()
    for _ in range(steps):
        solver.step(state, after, None, None, job["dt"])
        state, after = after, state
        tips.append(state.particle_q.numpy()[job["nodes"] - 1 :: job["nodes"]].astype(np.float64))
    return time.process_time() - began, np.stack(tips)


def measured(job: dict[str, Any]) -> dict[str, Any]:
    """Return the costs of building, compiling and each number of iterations, up to the first within the target error.

    A run's error is the largest distance of a tip from the reference, over all steps and robots.
    """
    import warp

    warp.config.quiet = True
    warp.config.kernel_cache_dir = job["cache"]
    began = time.perf_counter()
    stepped(cantilevers({**job, "youngs": job["youngs"][:1]}), job, 2, 1)
    compiling = time.perf_counter() - began
    began = time.perf_counter()
    model = cantilevers(job)
    build = time.perf_counter() - began
    reference = np.load(job["reference"])
    runs = []
    for iterations in job["iterations"]:
        seconds, tips = stepped(model, job, iterations, len(reference))
        runs.append(
            {
                "iterations": iterations,
                "seconds": seconds / (len(reference) * len(job["youngs"])),
                "error": float(np.linalg.norm(tips - reference, axis=-1).max()),
            }
        )
        if runs[-1]["error"] <= job["target"]:
            break
    return {
        "version": version("dismech-newton"),
        "build_s": build,
        "compile_s": compiling,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "runs": runs,
    }


def main() -> None:
    """Read the job, measure, print; what the peer itself prints is not passed on."""
    os.environ["OMP_NUM_THREADS"] = "1"
    job = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as cache, contextlib.redirect_stdout(io.StringIO()):
        found = measured({**job, "cache": cache})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
