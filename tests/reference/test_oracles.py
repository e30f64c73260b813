"""Energies, forces and Hessians against an independent implementation."""

import numpy as np
import pytest
import torch

from tests.reference.loading import load, reference_model, reference_state, tensor
from torchdismech import forces
from torchdismech.geometry.rods import PAIRS_3, PAIRS_8, bend_twist, stretch_derivatives
from torchdismech.geometry.vec3 import Vec3

# the files hold double precision numbers: what is left is the rounding of two ways to write the same formula
RELATIVE = 1e-9


def close(ours, theirs, relative=RELATIVE):
    """Whether the largest difference is small against the largest entry."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    return np.abs(ours - theirs).max() <= relative * np.abs(theirs).max()


def vec(array) -> Vec3:
    """Return (S, 3) as components (S, 1)."""
    return Vec3(*tensor(array).t().unsqueeze(-1).unbind(0))


# node dofs (x0, x1, x2, th_e, th_f) of the files from edge variables (e, f, th_e, th_f)
EDGES = np.zeros((8, 11))
for axis in range(3):
    EDGES[axis, [axis, 3 + axis]] = -1, 1
    EDGES[3 + axis, [3 + axis, 6 + axis]] = -1, 1
EDGES[6, 9] = EDGES[7, 10] = 1


def unpacked(entries, pairs, size):
    """Return (S, size, size) of packed symmetric entries (pairs, S)."""
    full = np.zeros((entries.shape[1], size, size))
    for (i, j), values in zip(pairs, entries, strict=True):
        full[:, i, j] = full[:, j, i] = values
    return full


class TestKernels:
    """64 random springs."""

    @pytest.fixture
    def data(self):
        """Load the file."""
        return load("oracle_rod_kernels")

    @pytest.fixture
    def spring(self, data):
        """Return the springs with frames anchored at the current shape."""
        anchors = []
        for k in "ef":
            theta = data[f"theta_{k}"]
            anchors.append(np.cos(theta) * data[f"m1{k}"] - np.sin(theta) * data[f"m2{k}"])
        e, f = data["node1"] - data["node0"], data["node2"] - data["node1"]
        te, tf = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (e, f))
        return bend_twist(
            vec(e),
            vec(f),
            tensor(data["theta_e"]),
            tensor(data["theta_f"]),
            vec(te),
            vec(tf),
            vec(anchors[0]),
            vec(anchors[1]),
            tensor(data["refTwist"]),
            averaged=True,
        )

    def test_stretch(self, data):
        """Match the stretch energy's gradient and Hessian."""
        e, l0, stiffness = data["node1"] - data["node0"], tensor(data["l0"]), tensor(data["EA"])
        eps, first, second = stretch_derivatives(vec(e), l0)
        slope = stiffness * l0 * eps
        gradient = torch.cat([slope * g for g in first], 1).numpy()
        outer = [first[i] * first[j] for i, j in PAIRS_3]
        packed = [slope * s + stiffness * l0 * o for s, o in zip(second, outer, strict=True)]
        hessian = unpacked(torch.cat(packed, 1).t().numpy(), PAIRS_3, 3)
        nodes = np.concatenate([-np.eye(3), np.eye(3)], axis=1)
        assert close((0.5 * slope * eps).numpy(), data["Es"])
        assert close(gradient @ nodes, data["gradEs"])
        assert close(nodes.T @ hessian @ nodes, data["hessEs"])

    @pytest.mark.parametrize("part", ["bend", "twist"])
    def test_bend_and_twist(self, data, spring, part):
        """Match the bending and the twisting energy's gradient and Hessian."""
        length = tensor(data["voronoiLen"])
        zero = torch.zeros_like(length)
        if part == "bend":
            ei, natural = tensor(data["EI"]), tensor(data["kappaBar"])
            strains = [spring.kappa1 - natural[:, :1], spring.kappa2 - natural[:, 1:]]
            stiffness = [ei[:, :1] / length, ei[:, 1:] / length]
            first = spring.first()[:2]
            slopes = [k * s for k, s in zip(stiffness, strains, strict=True)]
            second = spring.second(*slopes, zero)
            names = ("Eb", "gradEb", "hessEb_bergou")
        else:
            # the file's reference twists are random numbers, not those of its frames
            tau = tensor(data["theta_f"]) - tensor(data["theta_e"]) + tensor(data["refTwist"])
            strains, stiffness = [tau - tensor(data["undef_refTwist"])], [tensor(data["GJ"]) / length]
            first = spring.first()[2:]
            slopes = [k * s for k, s in zip(stiffness, strains, strict=True)]
            second = spring.second(zero, zero, *slopes)
            names = ("Et", "gradEt", "hessEt_bergou")
        energy = sum(0.5 * k * s * s for k, s in zip(stiffness, strains, strict=True))
        gradient = torch.cat([sum(s * f[a] for s, f in zip(slopes, first, strict=True)) for a in range(8)], 1).numpy()
        packed = [
            h + sum(k * f[i] * f[j] for k, f in zip(stiffness, first, strict=True))
            for h, (i, j) in zip(second, PAIRS_8, strict=True)
        ]
        hessian = unpacked(torch.cat(packed, 1).t().numpy(), PAIRS_8, 8)
        assert close(energy, data[names[0]])
        assert close(gradient @ EDGES, data[names[1]])
        assert close(EDGES.T @ hessian @ EDGES, data[names[2]])

    def test_curvatures(self, data, spring):
        """Match kappa1 and kappa2."""
        assert close(torch.cat([spring.kappa1, spring.kappa2], 1), data["kappa"])


@pytest.mark.parametrize("name", ["rod8", "network"])
class TestStructures:
    """Whole structures at a random state, frames anchored at the current shape."""

    def parts(self, name, keep):
        """Return force and stiffness with only some of stretch, bend, twist kept."""
        data = load(f"oracle_struct_{name}")
        model = reference_model(data, "geo_")
        bend = model.term("bend_twist").energy
        for part, parameters in {
            "s": [model.term("stretch").energy.EA],
            "b": [bend.EI1, bend.EI2],
            "t": [bend.GJ],
        }.items():
            if part != keep:
                for parameter in parameters:
                    parameter.data = torch.zeros_like(parameter)
        state = reference_state(model, data)
        start = model.start_step(state)
        force, values = model.mechanics.force_and_stiffness(start, state.q, torch.zeros_like(state.q), state.time)
        return data, force[0].numpy(), model.layout.pattern.to_dense(values)[0].numpy()

    @pytest.mark.parametrize("keep", ["s", "b", "t"])
    def test_force_and_stiffness(self, name, keep):
        """Match the elastic forces and their derivatives (J is dF/dq, the stiffness minus that)."""
        data, force, stiffness = self.parts(name, keep)
        jacobian = data["Js"] if keep == "s" else data[f"J{keep}_bergou"]
        assert close(force, data[f"F{keep}"])
        assert close(-stiffness, jacobian)

    def test_energies(self, name):
        """Match the stretch, bend and twist energies."""
        data = load(f"oracle_struct_{name}")
        model = reference_model(data, "geo_")
        energies = model.energies(reference_state(model, data))
        ours = [energies[k].item() for k in ("stretch", "bend", "twist")]
        assert close(ours, data["energies"][0, 2:5])

    def test_gravity(self, name):
        """Match weight less buoyancy: the file's fluid has 300 kg/m^3, its material 1200."""
        data = load(f"oracle_struct_{name}")
        gravity = forces.Gravity(np.array([0.3, -0.2, -9.81]) * (1 - 300 / 1200))
        model = reference_model(data, "geo_", [gravity])
        state = model.initial_state()
        assert close(gravity(state, None)[0], data["Fg"])

    def test_viscous(self, name):
        """Match the viscous force and its derivative; the file's velocity is (q - q0) / dt."""
        data = load(f"oracle_struct_{name}")
        viscous = forces.Viscous(0.1)
        model = reference_model(data, "geo_", [viscous])
        model.body.node_length = tensor(data["geo_voronoiRefLen"])
        velocity = tensor(data["q"] - data["q0"])[None] / data["dt"].item()
        state = reference_state(model, data).replace(velocity=velocity)
        assert close(viscous(state, None)[0], data["Fv"])
        ((_, by_velocity),) = viscous.derivatives(state, None)
        diagonal = by_velocity.flatten().numpy() / data["dt"].item()
        assert close(diagonal, np.diag(data["Jv"])[: len(diagonal)])


def test_resistive_force():
    """Match linear resistive force theory on a rod."""
    data = load("oracle_struct_rod8")
    resistive = forces.Resistive(0.01, 0.1)
    model = reference_model(data, "geo_", [resistive])
    # shares of the file's node lengths: its own reference lengths
    model.body.edge_length = tensor(data["geo_refLen"])
    state = reference_state(model, data).replace(velocity=tensor(data["u"]).reshape(1, -1))
    assert close(resistive(state, None)[0], data["Frft"])
