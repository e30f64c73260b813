"""Recordings in pickles: layouts that are read, and what a pickle cannot do."""

import os
import pickle

import numpy as np
import pytest

from tests.training.readings import FAULTLESS, nested, pickled
from tests.training.swinging import DT
from torchdismech.errors import InputError
from training.data import read

LAYOUTS = {
    "lists": nested,
    "tuples": lambda x: tuple(tuple(tuple(row) for row in frame) for frame in nested(x)),
    "arrays": lambda x: list(x.transpose(0, 2, 1)),
    "arrays by columns": lambda x: [np.asfortranarray(frame.T) for frame in x],
    "big-endian": lambda x: [frame.T.astype(">f8") for frame in x],
    "rows of arrays": lambda x: [[row.copy() for row in frame.T] for frame in x],
    "NumPy numbers": lambda x: [[list(row) for row in frame.T] for frame in x],
    "one array": lambda x: x.transpose(0, 2, 1).copy(),
}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_pickle_layouts_are_read(tmp_path, layout, protocol):
    """Read frames of (3, N), plain or of NumPy, in all protocols that NumPy writes itself in."""
    path = pickled(tmp_path / "12.pkl", layout(FAULTLESS[0]), protocol)
    found = read(path, dt=DT)
    assert np.array_equal(found.positions.numpy(), FAULTLESS[:1])
    assert found.names == ("12.pkl",)


def test_names_of_older_numpy_are_read(tmp_path):
    """Read arrays as NumPy 1 names its functions."""
    path = pickled(tmp_path / "12.pkl", LAYOUTS["arrays"](FAULTLESS[0]), protocol=2)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"numpy._core", b"numpy.core"))
    assert np.array_equal(read(path, dt=DT).positions.numpy(), FAULTLESS[:1])


class Malicious:
    """Something whose pickle would run a command."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_malicious_pickles_are_refused_and_run_nothing(tmp_path):
    """Refuse functions by name, wherever they stand and in every protocol, before anything is called."""
    proof = tmp_path / "it ran"
    attacks = {
        r"(posix|nt)\.system": Malicious(os.system, f"touch '{proof}'"),
        r"(builtins|__builtin__)\.eval": Malicious(eval, f"open({str(proof)!r}, 'w')"),
        r"numpy\S*\.load": Malicious(np.load, str(proof)),
    }
    for refusal, attack in attacks.items():
        for content in (attack, [nested(FAULTLESS[0]), attack]):
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                path = pickled(tmp_path / "bad.pkl", content, protocol)
                with pytest.raises(InputError, match=rf"bad\.pkl: refused: it asks for {refusal};"):
                    read(path, dt=DT)
    assert not proof.exists()
    # taken up without care the same pickle does run: so the test above would have seen it
    pickle.loads(pickle.dumps(Malicious(os.system, f"touch '{proof}'")))
    assert proof.exists()


def test_dotted_names_are_refused(tmp_path):
    """Refuse a name that reaches through an allowed module to another."""
    path = tmp_path / "bad.pkl"
    path.write_bytes(b"\x80\x04\x8c\x05numpy\x8c\x13ctypeslib.os.system\x93\x8c\x04true\x85R.")
    with pytest.raises(InputError, match=r"asks for numpy\.ctypeslib\.os\.system"):
        read(path, dt=DT)


PICKLE_FAULTS = {
    "nothing": ([], "expected a list of frames"),
    "a dictionary": ({"a": 1}, "expected a list of frames, got dict"),
    "frames of (N, 3)": (FAULTLESS[0].tolist(), r"frame 0: expected \(3, nodes\).*got shape \(6, 3\)"),
    "planar": (nested(FAULTLESS[0, ..., :2]), r"frame 0: expected \(3, nodes\)"),
    "flat": (FAULTLESS[0, 0].ravel().tolist(), "frame 0: expected"),
    "ragged": ([[[1.0, 2.0], [1.0], [1.0, 2.0]]] * 3, "frame 0: expected three equally long rows"),
    "texts": ([[["1", "2"], ["1", "2"], ["1", "2"]]] * 3, "frame 0: expected three rows of numbers, got str"),
    "truth values": ([[[True, True]] * 3] * 3, "got bool"),
    "a gap as None": ([[[None, 0.0]] * 3] * 3, "got NoneType"),
    "too deep": ([nested(FAULTLESS[0])] * 3, "frame 0: expected three rows of numbers, got list"),
    "nodes that come and go": ([*nested(FAULTLESS[0]), *nested(FAULTLESS[0, :3, :4])], "frame 60 has 4 nodes"),
    "whole numbers of NumPy": ([np.zeros((3, 6), dtype=np.int64)] * 3, "dtype 'i8'; expected floats"),
    "objects of NumPy": ([np.full((3, 6), None)] * 3, "dtype 'O8'; expected floats"),
}


@pytest.mark.parametrize(("content", "complaint"), PICKLE_FAULTS.values(), ids=PICKLE_FAULTS.keys())
def test_pickle_faults_are_refused(tmp_path, content, complaint):
    """Name file, frame, and what came."""
    with pytest.raises(InputError, match=rf"12\.pkl: .*{complaint}"):
        read(pickled(tmp_path / "12.pkl", content), dt=DT)


# ---- hostile files


def laughs() -> list:
    """Return a few lists in each other that would be 2^60 numbers if they were written out."""
    nest: list = [0.0]
    for _ in range(60):
        nest = [nest, nest]
    return [nest, nest, nest]


def test_small_pickles_of_endless_content_are_refused_at_once(tmp_path):
    """Refuse one list in many places before it is written out: in a message, and as a recording."""
    with pytest.raises(InputError, match=r"12\.pkl: frame 0: expected three rows of numbers, got list"):
        read(pickled(tmp_path / "12.pkl", laughs()), dt=DT)
    row = [0.5] * 50_000
    with pytest.raises(InputError, match=r"12\.pkl: takes about .* of memory"):
        read(pickled(tmp_path / "12.pkl", [[row, row, row]] * 3_000_000), dt=DT)


def test_pickles_change_nothing_that_outlives_them(tmp_path):
    """Leave the functions that stand in for NumPy's as they are, whatever attributes a pickle sets."""
    from training.data import pickles

    path = tmp_path / "12.pkl"
    # _codecs.encode, then BUILD with (None, {"__defaults__": (1,)})
    path.write_bytes(b"\x80\x04c_codecs\nencode\nN}\x8c\x0c__defaults__K\x01\x85s\x86b.")
    with pytest.raises(InputError, match="expected a list of frames, got function"):
        read(path, dt=DT)
    assert pickles.STAND_INS["_codecs", "encode"].__defaults__ is None
