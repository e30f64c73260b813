"""Energies, forces and Hessians of shells and joints against an independent implementation."""

import json

import numpy as np
import pytest
import torch

from tests.reference.loading import Correspondence, load, reference_model, reference_state, tensor
from tests.reference.paper_midedge import PlateInSpace, shape_operator, start_of_step_tau, with_paper_midedge
from tests.reference.test_oracles import close, unpacked, vec
from torchdismech import forces
from torchdismech.geometry.shells import PAIRS_9, hinge_angle, hinge_angle_derivatives, mid_edge
from torchdismech.geometry.vec3 import Vec3


class TestHinges:
    """64 random hinges."""

    # node dofs (x0, x1, x2, x3) from the edge vectors (e, a, b) that start at x0
    NODES = np.concatenate([-np.tile(np.eye(3), (3, 1)), np.eye(9)], axis=1)

    def test_angle_gradient_and_hessian(self):
        """Match the angle, the energy and their first and second derivatives."""
        data = load("oracle_hinge")
        e, a, b = (vec(data[f"x{k}"] - data["x0"]) for k in (1, 2, 3))
        angle, first, second = hinge_angle_derivatives(e, a, b)
        gradient = torch.cat(first, 1).numpy()
        hessian = unpacked(torch.cat(second, 1).t().numpy(), PAIRS_9, 9)
        off, stiffness = angle.numpy() - data["thetaBar"], data["kb"]
        assert close(hinge_angle(e, a, b), data["theta"]) and close(angle, data["theta"])
        assert close(gradient @ self.NODES, data["gradTheta"])
        assert close(self.NODES.T @ hessian @ self.NODES, data["hessTheta"])
        assert close(stiffness * off * gradient @ self.NODES, data["gradE"])
        energy_hessian = stiffness[..., None] * (off[..., None] * hessian + gradient[:, :, None] * gradient[:, None])
        assert close(self.NODES.T @ energy_hessian @ self.NODES, data["hessE"])


class TestMidEdge:
    """24 random triangles with random normals."""

    @pytest.fixture
    def data(self):
        """Load the file."""
        return load("oracle_midedge")

    def of(self, data, which=""):
        """Return sides (3, S, 1) each, as leaves, signed xi and signed tau of the present or the rest triangles."""
        nodes = tensor(data["P0" if which else "P"]).permute(1, 2, 0).unsqueeze(-1)
        nodes.requires_grad_()
        sides = [nodes[(k + 2) % 3] - nodes[(k + 1) % 3] for k in range(3)]
        signs = tensor(data["s"]).t()[:, :, None]
        xi = tensor(data["xi" + which]).t()[:, :, None].requires_grad_()
        tau = tensor(data["tau0" + which]).permute(1, 2, 0)[..., None] * signs[:, None]
        sizes = tensor(data["A0"]), tensor(data["l0"]).t()
        return nodes, xi, shape_operator(sides, xi * signs, tau, *sizes), sides, tau

    def test_the_papers_energy_and_gradient(self, data):
        """Match the papers' energy and its gradient, in which c and t are held."""
        nodes, xi, operator, _, _ = self.of(data)
        rest = self.of(data, "_init")[2].detach()
        change = operator - rest
        strain = tuple(change[i, j] for i, j in [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)])
        energy = PlateInSpace(tensor(data["stiff"]), tensor(data["nu"])).density(strain) * tensor(data["A0"])
        by_nodes, by_xi = torch.autograd.grad(energy.sum(), [nodes, xi])
        gradient = torch.cat([by_nodes.flatten(0, 1), by_xi]).squeeze(-1).t()
        assert close(energy.detach(), data["E"])
        assert close(gradient, data["grad"])

    def test_the_librarys_normals_agree_to_second_order(self, data):
        """Find w = tan(angle) within O(angle^2) of the papers' (s xi - f) / cos, as all angles shrink."""
        differences = []
        for size in (1e-1, 1e-2):
            generator = torch.Generator().manual_seed(0)
            flat = tensor(data["P"])
            area = torch.linalg.cross(flat[:, 1] - flat[:, 0], flat[:, 2] - flat[:, 0])
            flat = torch.where(area[:, 2, None, None] > 0, flat, flat[:, [0, 2, 1]])  # seen from above
            flat = flat * tensor(
                [1.0, 1.0, 0.0]
            )  # triangles in a plane, lifted a little, below normals that lean a little
            nodes = flat + size * 0.2 * torch.randn(flat.shape, generator=generator, dtype=torch.float64)
            lean = size * torch.randn(len(flat), 3, generator=generator, dtype=torch.float64)
            sides = [vec((nodes[:, (k + 2) % 3] - nodes[:, (k + 1) % 3]).numpy()) for k in range(3)]
            starts, anchors, theirs = [], [], []
            up = Vec3(*tensor([[0.0], [0.0], [1.0]])[:, :, None].expand(3, len(flat), 1).unbind(0))
            for k, e in enumerate(sides):
                t = e.times(1 / torch.sqrt(e.dot(e)))
                tau = t.cross(up)  # tau0 of an edge whose average normal is close to z
                tau = tau.times(1 / torch.sqrt(tau.dot(tau)))
                starts.append(t)
                anchors.append(tau.cross(t))
                n = sides[1].cross(sides[2])
                n = n.times(1 / torch.sqrt(n.dot(n)))
                out = t.cross(n)
                theirs.append((lean[:, k : k + 1] - n.dot(tau)) / out.dot(tau))
            psi = [torch.asin(lean[:, k : k + 1]) for k in range(3)]  # xi is the sine of the normal's angle
            ours = mid_edge(sides[1], sides[2], psi, starts, anchors).slopes
            differences.append(max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True)))
        # a difference of second order in angles shrinks a hundredfold; ours is even better: of third order
        assert differences[1] < 0.015 * differences[0]


class TestStructures:
    """Whole structures at a random state."""

    @pytest.mark.parametrize("name", ["rodshell", "shell_hinge", "shell_midedge"])
    @pytest.mark.parametrize("part", ["stretch", "bend", "twist", "hinge", "midedge"])
    def test_energy_force_and_stiffness(self, name, part):
        """Match each elastic energy, its force and, where the file's are derivatives, its matrix."""
        data = load(f"oracle_struct_{name}")
        letter = {"stretch": "s", "bend": "b", "twist": "t", "hinge": "h", "midedge": "m"}[part]
        if "F" + letter not in data:
            assert (name, part) in {
                *(("shell_hinge", p) for p in ("bend", "twist", "midedge")),
                *(("shell_midedge", p) for p in ("bend", "twist", "hinge")),
                ("rodshell", "midedge"),
            }
            return
        model = reference_model(data, "geo_")
        if part == "midedge":
            model = with_paper_midedge(model, data, "geo_")
        terms = {"stretch": ("stretch", "membrane"), "bend": ("bend_twist",), "twist": ("bend_twist",)}.get(
            part, (part,)
        )
        for term in model.terms:
            for parameter in term.energy.parameters():
                if term.name not in terms:
                    parameter.data = torch.zeros_like(parameter)
        if part in ("bend", "twist"):
            energy = model.term("bend_twist").energy
            for parameter in [energy.GJ] if part == "bend" else [energy.EI1, energy.EI2]:
                parameter.data = torch.zeros_like(parameter)
        model.terms = torch.nn.ModuleList([t for t in model.terms if t.name in terms])
        model._lay_out()
        state = reference_state(model, data)
        # the papers' normals are measured against the shape at the start of the step
        start = model.start_step(reference_state(model, data, q="q0") if part == "midedge" else state)
        force, values = model.mechanics.force_and_stiffness(start, state.q, torch.zeros_like(state.q), state.time)
        numbers = Correspondence(model, data, "geo_")
        assert close(force, numbers.ours(data["F" + letter]))
        if part != "midedge":  # the file's matrix of that part is not the derivative of its force
            jacobian = data[{"s": "Js", "h": "Jh"}.get(letter, f"J{letter}_bergou")]
            assert close(-model.layout.pattern.to_dense(values)[0].numpy(), numbers.ours_matrix(jacobian))
        column = ["stretch", "bend", "twist", "hinge", "midedge"].index(part) + 2
        pairs = zip(model.terms, start.constants, strict=True)
        found_parts = [term.parts(state.q.t(), constants) for term, constants in pairs]
        found = sum(parts[part].sum(0) for parts in found_parts if part in parts)
        if part == "stretch":
            found = sum(e for key, e in model.energies(state).items() if key in ("stretch", "membrane"))
        assert close(found, data["energies"][0, column])

    @pytest.mark.parametrize("name", ["rodshell", "shell_hinge", "shell_midedge"])
    def test_weight_less_buoyancy_and_viscosity(self, name):
        """Match gravity less buoyancy and the viscous force with the file's node lengths."""
        data = load(f"oracle_struct_{name}")
        material = json.loads(str(data["params_json"]))["material"]
        gravity = forces.Gravity(np.array([0.3, -0.2, -9.81]) * (1 - 300 / material["density"]))
        viscous = forces.Viscous(0.1)
        model = reference_model(data, "geo_", [gravity, viscous])
        model.body.node_length = tensor(data["geo_voronoiRefLen"]).reshape(-1)
        numbers = Correspondence(model, data, "geo_")
        velocity = numbers.ours((data["q"] - data["q0"]) / data["dt"].item())
        state = model.initial_state().replace(velocity=velocity)
        n = 3 * model.body.n_nodes
        assert close(gravity(state, None)[:, :n], numbers.ours(data["Fg"])[:, :n])
        assert close(viscous(state, None)[:, :n], numbers.ours(data["Fv"])[:, :n])

    def test_tau_of_the_papers(self):
        """Match the vectors along which the file's mid-edge scalars are measured."""
        data = load("oracle_struct_shell_midedge")
        model = reference_model(data, "geo_")
        numbers = Correspondence(model, data, "geo_")
        q0 = tensor(data["q0"])[: 3 * model.body.n_nodes].reshape(1, -1, 3)
        ours = start_of_step_tau(model.body.surface, q0)[0].numpy() * numbers.signs[:, None]
        assert min(np.abs(ours - data["tau0"].T[numbers.edges]).max(), 1.0) < 1e-9
