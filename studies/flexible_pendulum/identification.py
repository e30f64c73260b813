"""Find stiffness and viscosity of the flexible pendulum's cable from a noisy swing, with error bars.

    python -m studies.flexible_pendulum.identification

Sixteen times the same cable falls from the horizontal for 0.8 s while its motor holds; the joints and the tip are seen
with other noise. All sixteen fits are one batch: each robot has its own Young's modulus and viscosity, and one
`backward` gives the gradients of all. The spread over the robots is the error bar. Beside it stands what statistics
expects of it: the root of the diagonal of (J^T J)^-1 noise^2, with the Jacobian J of what is seen, by central
differences.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from studies.flexible_pendulum.flexible_pendulum import STEP, VISCOSITY, YOUNGS, cable, motor
from torchdismech import trainable, unroll
from torchdismech.rigid import Radau, RigidChain

TRUTH = {"youngs": YOUNGS, "viscosity": VISCOSITY}  # Pa, Pa s
GUESS = {"youngs": 0.6 * YOUNGS, "viscosity": 2 * VISCOSITY}
SEGMENTS, STEPS = 5, 80


def seen(chain: RigidChain, robots: int, steps: int = STEPS) -> Tensor:
    """Return the positions of joints and tip after each step, (steps, robots, K + 1, 3) [m]."""
    run = unroll(chain, chain.initial_state(robots), Radau(STEP), steps, controller=motor(), throw=True)
    return torch.stack([chain.points(q) for q in run.q[1:]])


def identify(robots: int = 16, iterations: int = 15, noise: float = 2e-3, steps: int = STEPS) -> dict[str, Tensor]:
    """Return the constants (robots,) found from joints and tips that are seen with `noise` [m]."""
    with torch.no_grad():
        clean = seen(cable(SEGMENTS, **TRUTH), 1, steps)
    generator = torch.Generator().manual_seed(0)
    noisy = clean + noise * torch.randn(steps, robots, *clean.shape[2:], generator=generator, dtype=clean.dtype)
    chain = cable(SEGMENTS, **GUESS)
    factors = {
        "youngs": trainable.scaled(chain, ["stiffness_z"], (robots, 1)),
        "viscosity": trainable.scaled(chain, ["damping_z"], (robots, 1)),
    }
    optimizer = torch.optim.LBFGS(
        [factor.log_factor for factor in factors.values()],
        max_iter=iterations,
        tolerance_grad=1e-5,
        line_search_fn="strong_wolfe",
    )

    def misfit() -> Tensor:
        optimizer.zero_grad()
        chi_square = ((seen(chain, robots, steps) - noisy) / noise).square().mean((0, 2, 3)).sum()
        chi_square.backward()
        return chi_square

    optimizer.step(misfit)
    return {name: GUESS[name] * factor.log_factor.detach().exp().flatten() for name, factor in factors.items()}


@torch.no_grad()
def expected_errors(noise: float = 2e-3, steps: int = STEPS) -> dict[str, float]:
    """Return the standard deviations of the constants due to noise of this size [m], by the Jacobian at the truth."""
    step = 1e-3
    logs = step * torch.cat([torch.eye(2), -torch.eye(2)]).double()
    youngs, viscosity = (logs.exp() * torch.tensor([YOUNGS, VISCOSITY], dtype=torch.float64)).split(1, dim=1)
    moved = seen(cable(SEGMENTS, youngs, viscosity), 4, steps).transpose(0, 1).flatten(1)
    jacobian = (moved[:2] - moved[2:]).t() / (2 * step)
    covariance = noise**2 * torch.linalg.inv(jacobian.t() @ jacobian)
    return dict(zip(TRUTH, (covariance.diagonal().sqrt() * torch.tensor([YOUNGS, VISCOSITY])).tolist(), strict=True))


def main(robots: int, iterations: int) -> None:
    """Identify and print a table."""
    found, expected = identify(robots, iterations), expected_errors()
    print(f"{'':10}{'true':>12}{'guess':>12}{'found':>12}{'+-':>12}{'expected':>12}")
    for name, values in found.items():
        numbers = (TRUTH[name], GUESS[name], float(values.mean()), float(values.std()), expected[name])
        print(f"{name:10}" + "".join(f"{number:12.4g}" for number in numbers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", type=int, default=16, help="how many times the cable is seen")
    parser.add_argument("--iterations", type=int, default=15, help="steps of the optimiser")
    arguments = parser.parse_args()
    main(arguments.robots, arguments.iterations)
