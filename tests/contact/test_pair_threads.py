"""Pairs in contact, which threads share out."""

import torch

from torchdismech import Circle, ImplicitEuler, Material, Model, RobotBuilder, straight
from torchdismech.contact import Friction, Penalty, SelfContact
from torchdismech.contact.pairs import pair_calls

RADIUS, TOLERANCE = 2e-3, 1e-3  # m


def bundle() -> Model:
    """Return four rods side by side, close enough to touch each other along all of their length."""
    builder = RobotBuilder()
    for k in range(4):
        y, z = (2 * RADIUS + 0.5 * TOLERANCE) * (k % 2), (2 * RADIUS + 0.5 * TOLERANCE) * (k // 2)
        nodes = builder.add_rod(straight((1e-4 * k, y, z), (0.1, y, z), 17), Circle(RADIUS), Material(1e6, 1000.0, 0.4))
        builder.clamp(nodes=nodes[:1].tolist())
    builder.add_contact(SelfContact(Penalty(50.0, TOLERANCE), Friction(0.3, 0.01)))
    return builder.finalize()


def test_threads_change_no_bit(monkeypatch):
    """Step 20 robots alike, with all that is reported, however many threads share out their pairs.

    The robots are two groups of eight and one of four. Of 16 steps some run in Python and some by recorded rounds.
    """
    monkeypatch.setattr(pair_calls, "PAIRS_A_THREAD", 100)  # of some 3,000
    threads = torch.get_num_threads()
    runs = []
    for count in (1, 3):
        model = bundle()
        speed = torch.randn(20, model.n_dofs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        state, reports = model.initial_state(velocity=0.02 * speed * model.free), []
        torch.set_num_threads(count)
        try:
            for _ in range(16):
                state, info = ImplicitEuler(2e-3).step(model, state)
                reports += info.contact.values()
        finally:
            torch.set_num_threads(threads)
        runs.append([state.q, state.velocity, *reports])
    assert info.contact["active"].min() > 50
    one, three = runs
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))
