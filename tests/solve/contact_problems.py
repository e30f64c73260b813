"""Contact problems that tests share."""

import torch

METHODS = ["interior_point", "fischer_burmeister", "gauss_seidel"]


def normal_numbers(*shape, seed=0):
    """Return normally distributed float64 numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def every(mu):
    """Return the mask of all contacts."""
    return torch.ones_like(mu, dtype=torch.bool)


def random_contacts(rows, contacts, freedoms, disparity, friction=1.5, seed=0):
    """Return W = J M^-1 J^T, b = J u and mu of random bodies whose masses differ up to 10^disparity."""
    generator = torch.Generator().manual_seed(seed)
    jacobian = torch.randn(rows, 3 * contacts, freedoms, generator=generator, dtype=torch.float64)
    mass = 10 ** (disparity * torch.rand(rows, freedoms, generator=generator, dtype=torch.float64))
    motion = torch.randn(rows, freedoms, 1, generator=generator, dtype=torch.float64)
    mu = friction * torch.rand(rows, contacts, generator=generator, dtype=torch.float64)
    return jacobian @ (jacobian.mT / mass[..., None]), (jacobian @ motion)[..., 0], mu


def disks_on_plane(rows, contacts, friction=0.2, seed=0):
    """Return contacts along a stiff arm of 9 freedoms pressed on a plane: redundant, stiff, little friction."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.linspace(0.05, 1.0, contacts, dtype=torch.float64)
    start = torch.arange(3, dtype=torch.float64) / 3
    past = (place[:, None] - start).clamp(min=0.0)
    shapes = past.clamp(max=1 / 3) + 0.5 * past.square()  # (C, 3)
    jacobian = torch.zeros(rows, contacts, 3, 9, dtype=torch.float64)
    for axis in range(3):
        jacobian[:, :, axis, 3 * axis : 3 * axis + 3] = shapes
    tilt = torch.randn(rows, 1, 3, 9, generator=generator, dtype=torch.float64)
    jacobian = (jacobian + 0.05 * tilt * place[:, None, None]).flatten(1, 2)
    stiffness = 10 ** (6 * torch.rand(9, generator=generator, dtype=torch.float64))  # [N/m], 1 to 1e6
    matrix = 0.15 * torch.eye(9, dtype=torch.float64) + torch.diag((1e-3**2 + 1e-3 * 1e-2) * stiffness)
    motion = torch.randn(rows, 9, 1, generator=generator, dtype=torch.float64)
    motion[:, :3] = -motion[:, :3].abs()
    mu = friction * torch.rand(rows, contacts, generator=generator, dtype=torch.float64)
    return jacobian @ torch.linalg.solve(matrix, jacobian.mT), (jacobian @ motion)[..., 0], mu


def block(velocity, mass=2.0, size=(0.4, 0.3, 0.1)):
    """Return W and b (1, 12), and the total of impulses (3, 12), of a box on its four lower corners.

    velocity : (vz, vx, vy) of its centre.
    """
    a, b, c = size
    corners = torch.tensor([[x * a / 2, y * b / 2, -c / 2] for x in (-1, 1) for y in (-1, 1)], dtype=torch.float64)
    inertia = mass / 12 * torch.tensor([b * b + c * c, a * a + c * c, a * a + b * b], dtype=torch.float64)
    axes = torch.tensor([[0.0, 0, 1], [1, 0, 0], [0, 1, 0]], dtype=torch.float64)  # normal, tangents
    blocks = [torch.cat([axes, torch.linalg.cross(r.expand(3, 3), axes)], 1) for r in corners]
    jacobian = torch.cat(blocks)
    inverse = torch.diag(1 / torch.cat([torch.full((3,), mass, dtype=torch.float64), inertia]))
    twist = torch.cat([axes.T @ torch.tensor(velocity, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)])
    total = torch.eye(3, dtype=torch.float64).repeat(1, 4)
    return (jacobian @ inverse @ jacobian.T)[None], (jacobian @ twist)[None], total


def violation(delassus, free, mu, impulses):
    """Return the largest violation (B,) of Coulomb's law, relative to |b|: an independent statement of it."""
    p = impulses.unflatten(1, (-1, 3))
    v = ((delassus @ impulses[..., None])[..., 0] + free).unflatten(1, (-1, 3))
    own = delassus.diagonal(dim1=1, dim2=2).unflatten(1, (-1, 3)).amax(2)
    size, speed = p[..., 1:].norm(dim=2), v[..., 1:].norm(dim=2)
    limit = mu * p[..., 0]
    penetration = (-v[..., 0]).clamp(min=0)
    tension = own * (-p[..., 0]).clamp(min=0)
    both = torch.minimum(own * p[..., 0], v[..., 0]).clamp(min=0)
    over = own * (size - limit).clamp(min=0)
    # sliding inside the cone, and sliding that friction does not oppose: both are lack of dissipation
    idle = torch.minimum(own * (limit - size).clamp(min=0), speed)
    along = (p[..., 1:] * v[..., 1:]).sum(2)
    power = torch.where(
        size * speed > 0, speed * (1 + along / (size * speed).clamp(min=1e-300)), torch.zeros_like(speed)
    )
    power = torch.minimum(power, own * size)
    worst = torch.stack([penetration, tension, both, over, idle, power]).amax((0, 2))
    return worst / free.abs().amax(1)
