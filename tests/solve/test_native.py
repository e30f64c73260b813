"""Banded factors by compiled code: groups of robots, growth, threads, and what happens without a compiler."""

import hashlib
import itertools
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.solve.topologies import chain, cliques, hinges, random_values
from torchdismech.errors import InputError
from torchdismech.native import compiled as native
from torchdismech.solve import linear
from torchdismech.solve.linear import native_band
from torchdismech.solve.linear.banded import BandedSolver
from torchdismech.sparse import Pattern
from torchdismech.sparse.ordering import BandedOrder

RELATIVE = {torch.float64: 1e-12, torch.float32: 1e-4}  # condition numbers below 1e3 times machine epsilon


@pytest.fixture
def compiler():
    """Skip where the compiled code cannot be had, and say why."""
    try:
        native.library()
    except native.Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache directory, for a process that has not looked for compiled code yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "_found", None)
    return tmp_path / "cache" / "torchdismech"


def band(n, lower, upper):
    """Return the unsymmetric pattern of a band, numbered along it."""
    rows, cols = np.indices((n, n)).reshape(2, -1)
    inside = (rows - cols <= lower) & (cols - rows <= upper)
    return Pattern.union(n, rows[inside], cols[inside], False, np.arange(n))


def assert_solves(pattern, values, transpose=False, **options):
    """Compare the compiled factor with numpy."""
    rhs = torch.from_numpy(np.random.default_rng(1).normal(size=(values.shape[1], pattern.n))).to(values.dtype)
    factor = linear.make("banded", pattern, method="native").factor(values, **options)
    assert factor.ok.all()
    x = factor.solve(rhs, transpose=transpose).double()
    dense = pattern.to_dense(values.double())
    expected = torch.linalg.solve(dense.mT if transpose else dense, rhs.double())
    error = ((x - expected).abs().amax(1) / expected.abs().amax(1)).max()
    assert error <= RELATIVE[values.dtype]


@pytest.mark.usefixtures("compiler")
class TestGroups:
    """Robots that share vectors."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("batch", [1, 7, 8, 9, 15, 16, 17, 33, 71])
    @pytest.mark.parametrize("kind", ["definite", "indefinite", "unsymmetric"])
    def test_any_number_of_robots(self, kind, batch, dtype):
        """Solve full groups, groups with empty lanes, and more groups than are filled at once."""
        pattern = chain(symmetric=kind != "unsymmetric")
        values = random_values(pattern, kind, batch).to(dtype)
        for transpose in (False, True):
            assert_solves(pattern, values, transpose, indefinite=kind == "indefinite")

    @pytest.mark.parametrize("lower", [0, 1, 3, 4, 5, 9])
    @pytest.mark.parametrize("upper", [0, 1, 4, 6])
    def test_any_bandwidths(self, lower, upper):
        """Solve bands that reach less far than the columns that are reduced together, and unequally far; also alone."""
        for n in (1, 4, 11, 22):
            pattern = band(n, lower, upper)
            for transpose, batch in itertools.product((False, True), (1, 3)):
                assert_solves(pattern, random_values(pattern, "unsymmetric", batch), transpose)

    @pytest.mark.parametrize("kind", ["definite", "indefinite", "unsymmetric"])
    @pytest.mark.parametrize("batch", [1, 3, 19])
    def test_bands_that_are_wide_in_places(self, kind, batch):
        """Solve where pivots reach unequally far, in the first lines, within and in the last; also alone."""
        for joined in ((0, 20), (23, 52), (40, 61), (3, 9)):
            pattern = cliques([range(k, k + 5) for k in range(0, 60, 3)] + [joined], 62, kind != "unsymmetric")
            for transpose in (False, True):
                assert_solves(pattern, random_values(pattern, kind, batch), transpose, indefinite=kind == "indefinite")

    def test_values_and_right_sides_with_gaps(self):
        """Take tensors whose numbers do not lie side by side."""
        pattern = chain()
        values = random_values(pattern, "definite", 24)
        rhs = torch.from_numpy(np.random.default_rng(1).normal(size=(12, 2 * pattern.n)))
        solver = linear.make("banded", pattern, method="native")
        apart = solver.factor(values[:, ::2]).solve(rhs[:, ::2])
        assert torch.equal(apart, solver.factor(values[:, ::2].contiguous()).solve(rhs[:, ::2].contiguous()))

    @pytest.mark.parametrize("kind", ["definite", "unsymmetric"])
    @pytest.mark.parametrize("fault", [torch.nan, torch.inf, -torch.inf, 0.0, -1e3])
    def test_bad_rows_beside_good_ones(self, kind, fault):
        """Flag the robots with a bad entry, whichever lane they are in, and change no bit of the others."""
        pattern = chain(symmetric=kind == "definite")
        values = random_values(pattern, kind, 19)
        rhs = torch.ones(19, pattern.n, dtype=torch.float64)
        solver = linear.make("banded", pattern, method="native")
        healthy = solver.factor(values).solve(rhs)
        bad = torch.arange(19) % 3 == 0
        entry = pattern.diagonal[pattern.n // 2]
        values[entry, bad] = fault
        solved = ~bad if kind == "definite" or not np.isfinite(fault) else torch.ones_like(bad)  # LU exchanges rows
        factor = solver.factor(values)
        x = factor.solve(rhs)
        assert torch.equal(factor.ok, solved)
        assert torch.equal(x[~bad], healthy[~bad])
        assert torch.equal(x[~solved], torch.zeros_like(x[~solved]))

    @pytest.mark.parametrize("kind", ["definite", "unsymmetric"])
    @pytest.mark.parametrize("fault", [None, torch.nan, torch.inf, -torch.inf, 0.0, -1e3])
    def test_a_robot_alone_is_flagged_as_in_a_batch(self, kind, fault):
        """Say of a single matrix, whose lines are vectors, what is said of it among others, and solve it alike."""
        pattern = chain(symmetric=kind == "definite")
        values = random_values(pattern, kind, 5)
        if fault is not None:
            values[pattern.diagonal[pattern.n // 2], 2] = fault
        rhs = torch.ones(5, pattern.n, dtype=torch.float64)
        solver = linear.make("banded", pattern, method="native")
        many, one = solver.factor(values), solver.factor(values[:, 2:3])
        assert torch.equal(one.ok, many.ok[2:3])
        # both lose as many digits as the condition number, below 1e3
        assert (one.solve(rhs[:1]) - many.solve(rhs)[2]).abs().max() <= 1e-12 * rhs.abs().max()

    def test_threads_change_no_bit(self, monkeypatch):
        """Give the same numbers however many threads share the groups."""
        pattern = chain()
        values, rhs = random_values(pattern, "definite", 71), torch.ones(71, pattern.n, dtype=torch.float64)
        solver, threads = linear.make("banded", pattern, method="native"), torch.get_num_threads()
        alone = solver.factor(values).solve(rhs)
        monkeypatch.setattr(native_band, "NUMBERS_A_THREAD", 1)
        try:
            torch.set_num_threads(3)
            shared = solver.factor(values).solve(rhs)
        finally:
            torch.set_num_threads(threads)
        assert torch.equal(alone, shared)

    def test_memory_counts_whole_vectors(self):
        """Count the numbers that a factor holds, with the empty lanes of its last group."""
        for pattern in (chain(), chain(symmetric=False)):
            solver = linear.make("banded", pattern, method="native")
            parts = solver.factor(random_values(pattern, "definite", 9)).parts
            held = parts if pattern.symmetric else parts.native
            assert held._bands.nbytes <= solver.memory(9) <= 2 * held._bands.nbytes  # of vectors of 64 bytes or less


@pytest.mark.usefixtures("compiler")
class TestGrowth:
    """LU without row exchanges, where it is not good enough."""

    def values_that_grow(self, pattern, small):
        """Return a well-conditioned chain matrix per size of its diagonal."""
        values = torch.zeros(pattern.nnz, len(small), dtype=torch.float64)
        values[pattern.diagonal] = torch.tensor(small, dtype=torch.float64)
        walk = np.arange(1, pattern.n)
        values[pattern.position(walk, walk - 1)] = 1.0
        if not pattern.symmetric:
            values[pattern.position(walk - 1, walk)] = -1.0
        return values

    @pytest.mark.parametrize("symmetric", [True, False])
    @pytest.mark.parametrize("transpose", [False, True])
    def test_rows_that_grow_are_solved_with_row_exchanges(self, symmetric, transpose):
        """Solve to full accuracy where pivots are tiny or zero though the matrix is sound, beside tame rows."""
        n = 64
        pattern = cliques([(k, k + 1) for k in range(n - 1)], n, symmetric, np.arange(n))
        values = self.values_that_grow(pattern, [4.0, 1e-10, 0.0, 3.0, 1e-14, 5.0, 4.0, 4.0, 1e-6, 4.0])
        assert np.linalg.cond(pattern.to_dense(values).numpy()).max() < 200
        factor = linear.make("banded", pattern, method="native").factor(values, indefinite=symmetric)
        assert factor.parts.grown.tolist() == [1, 2, 4, 8]
        assert_solves(pattern, values, transpose, indefinite=symmetric)

    def test_growth_that_cancels_again_is_seen(self):
        """Judge by all terms of the elimination, not by what is left of them in the factor."""
        # Both terms of entry (2, 2) are 1e10 and cancel: the factor itself shows none of it but a lost 1.
        dense = np.array([[1e-10, 0, 1.0], [0, -1e-10, 1.0], [1.0, 1.0, 1.0]])
        pattern = cliques([range(3)], 3, False, np.arange(3))
        values = torch.from_numpy(dense[pattern.rows, pattern.cols][:, None])
        factor = linear.make("banded", pattern, method="native").factor(values)
        assert factor.parts.grown.tolist() == [0]

    def test_singular_rows_are_not_ok(self):
        """Flag a matrix that row exchanges do not save either."""
        pattern = chain(symmetric=False)
        values = random_values(pattern, "unsymmetric", 9)
        values[torch.from_numpy(pattern.cols == 5), 4] = 0
        factor = linear.make("banded", pattern, method="native").factor(values)
        assert torch.equal(factor.ok, torch.arange(9) != 4)


class TestFronts:
    """How far pivots reach."""

    def test_pivots_reach_as_far_as_those_before_them(self):
        """Tell of a short chain of which two distant places are joined how far elimination gets."""
        pattern = cliques([(k, k + 1) for k in range(5)] + [(1, 4)], 6)
        order = BandedOrder(np.arange(6), np.arange(6), 3, 3)
        begin, last = native_band.band_fronts(pattern.rows, pattern.cols, order)
        assert last.tolist() == [1, 4, 4, 4, 5, 5]
        assert begin.tolist() == [0, 0, 1, 1, 1, 4]
        assert BandedSolver(pattern).reach < BandedSolver(pattern).order.lower


@pytest.mark.usefixtures("compiler")
class TestCompiling:
    """The compiled code in its cache."""

    def test_auto_takes_compiled_code_for_many_robots(self):
        """Take native for a batch and for a robot alone, LAPACK for two with a wider band, and describe that."""
        chained, plate = chain(), hinges(12)
        for pattern, robots, taken in ((chained, 8, True), (chained, 1, True), (plate, 8, True), (plate, 2, False)):
            solver = BandedSolver(pattern)
            found = solver.factor(random_values(pattern, "definite", robots)).parts
            assert isinstance(found, native_band.NativeBand) == taken
        assert "native" in solver.describe()
        assert native.library().made_by in solver.describe()

    @pytest.mark.slow
    def test_several_processes_compile_at_once(self, cache):
        """Compile into one file, complete whenever it is there, and not at import."""
        script = (
            "import torchdismech; from torchdismech.native import compiled as native; assert native._found is None; "
            "print(native.library().vector_bytes)"
        )
        started = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(2)]
        answers = [int(process.communicate()[0]) for process in started]
        assert answers[0] == answers[1] > 0
        assert [path.suffix for path in cache.iterdir()] == [".so"]

    def test_second_process_does_not_compile(self, cache, monkeypatch):
        """Load what is in the cache."""
        native.library()
        monkeypatch.setattr(native, "_found", None)
        monkeypatch.setattr(native, "_made", None)
        assert native.library().vector_bytes > 0

    def test_compiler_that_refuses_native_instructions(self, cache, monkeypatch, tmp_path):
        """Compile for the plain machine, say so, and solve."""
        real = shutil.which(native.compiler()[0])
        script = f'case "$*" in *-march*) exit 1;; esac\nexec {real} "$@"'
        monkeypatch.setenv("CXX", executable(tmp_path / "plain-c++", script))
        assert "plain-c++ -O3" in native.library().made_by
        assert "march" not in native.library().made_by
        for kind in ("definite", "unsymmetric"):
            pattern = chain(symmetric=kind == "definite")
            assert_solves(pattern, random_values(pattern, kind, 11))

    def test_file_that_is_no_library(self, cache, monkeypatch, tmp_path):
        """Name the file that a compiler left and that cannot be loaded."""
        script = 'for word; do case "$before" in -o) echo "not a library" > "$word";; esac; before=$word; done'
        monkeypatch.setenv("CXX", executable(tmp_path / "odd-c++", script))
        with pytest.raises(InputError, match=f"cannot be loaded .*; remove {cache}/native-"):
            native.library()


@pytest.fixture(scope="module")
def library_file(tmp_path_factory):
    """A compiled library, made once."""
    directory = tmp_path_factory.mktemp("compiled")
    directory.chmod(0o700)
    try:
        command = native.compiler()
        flags, _ = native._flags_and_target(tuple(command))
        sources = [source.read_bytes() for source in native.SOURCES]
        return native._made(command, flags, directory, "once", sources, "the sources")
    except native.Unavailable as missing:
        pytest.skip(str(missing))


class TestHostileCache:
    """Files and directories that are not as this package left them; nothing of others is ever loaded."""

    @pytest.fixture(autouse=True)
    def quick_compiler(self, library_file, monkeypatch, tmp_path):
        """A compiler that hands out what was compiled before."""
        script = f'for word; do case "$before" in -o) cp {library_file} "$word";; esac; before=$word; done'
        monkeypatch.setenv("CXX", executable(tmp_path / "quick-c++", script))

    @pytest.fixture
    def loaded(self, monkeypatch):
        """Record what is loaded, and by which contents."""
        found, load = [], native.ctypes.CDLL

        def recording(path):
            found.append(Path(path).read_bytes())
            return load(path)

        monkeypatch.setattr(native.ctypes, "CDLL", recording)
        return found

    def kept(self, cache, monkeypatch):
        """Return the library that a first process leaves, as one that is about to look for it finds it."""
        native.library()
        monkeypatch.setattr(native, "_found", None)
        (path,) = cache.iterdir()
        return path

    @pytest.mark.parametrize("length", [0, 1000, -1])
    def test_truncated(self, cache, monkeypatch, loaded, length):
        """Compile again where a library is cut off, and put the new one in its place."""
        path = self.kept(cache, monkeypatch)
        whole = path.read_bytes()
        exchange(path, whole[:length])
        assert native.library().vector_bytes > 0
        assert loaded == [whole, whole]
        assert [file.read_bytes() for file in cache.iterdir()] == [whole]

    def test_other_content(self, cache, monkeypatch, loaded):
        """Load no file whose content is not what its name says, and none with a name of before."""
        path = self.kept(cache, monkeypatch)
        whole = path.read_bytes()
        exchange(path, whole.replace(b"band_", b"bond_"))
        path.with_name(path.name.rpartition("-")[0] + ".so").write_bytes(b"planted")
        native.library()
        assert loaded == [whole, whole]

    @pytest.mark.parametrize("how", ["writable", "link"])
    def test_planted_file(self, cache, monkeypatch, loaded, tmp_path, how):
        """Load no file that others can write to, and no link, though checksum and name fit."""
        path = self.kept(cache, monkeypatch)
        content = path.read_bytes() + b"planted"
        path.unlink()
        planted = path.with_name(f"{path.name.rpartition('-')[0]}-{hashlib.sha256(content).hexdigest()[:32]}.so")
        if how == "link":
            (tmp_path / "elsewhere.so").write_bytes(content)
            planted.symlink_to(tmp_path / "elsewhere.so")
        else:
            planted.write_bytes(content)
            planted.chmod(0o666)
        native.library()
        assert content not in loaded
        assert len(loaded) == 2

    @pytest.mark.parametrize("what", ["directory", "parent"])
    @pytest.mark.parametrize("mode", [0o777, 0o775])
    def test_directory_that_others_write_to(self, cache, monkeypatch, loaded, what, mode):
        """Compile for this process alone, say so, and leave what is there: it may be anybody's."""
        path = self.kept(cache, monkeypatch)
        if mode == 0o775:
            monkeypatch.setattr(os, "getegid", lambda: os.geteuid() + 1)  # not a group of the user's own
        (cache if what == "directory" else cache.parent).chmod(mode)
        content = path.read_bytes()
        exchange(path, b"planted")
        with pytest.warns(RuntimeWarning, match=f"for this process alone.* others can write to {cache.parent}.*XDG"):
            assert native.library().vector_bytes > 0
        assert loaded == [content, content]
        assert [file.read_bytes() for file in cache.iterdir()] == [b"planted"]

    def test_directory_of_another_user(self, cache, monkeypatch, loaded):
        """Load nothing of what is there."""
        path = self.kept(cache, monkeypatch)
        exchange(path, b"planted")
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)  # temporary directories are another's, too
        with (
            pytest.warns(RuntimeWarning, match=f"{cache} belongs to user {user}, not to {user + 1}"),
            pytest.raises(InputError, match="no safe place for compiled code"),
        ):
            native.library()
        assert len(loaded) == 1

    def test_no_safe_place_at_all(self, cache, monkeypatch):
        """Do without compiled code where even temporary files are not the user's own."""
        cache.mkdir(parents=True)
        cache.chmod(0o777)
        (cache.parent / "temporary").mkdir()
        (cache.parent / "temporary").chmod(0o777)
        monkeypatch.setattr(native.tempfile, "tempdir", str(cache.parent / "temporary"))
        with pytest.warns(RuntimeWarning, match="this process alone"):
            assert_lapack_instead("no safe place for compiled code: others can write to .*temporary")

    def test_sticky_parents_are_safe(self, cache):
        """Keep code below a directory such as /tmp, where nobody can replace what is another's."""
        cache.parent.mkdir()
        cache.parent.chmod(0o1777)
        native.library()
        assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, *cache.iterdir())] == [0o700, 0o700]


def exchange(path, content):
    """Put another file in the place of a library that this process has loaded."""
    path.unlink()
    path.write_bytes(content)


def executable(path, script):
    """Write a shell script and return its path."""
    path.write_text("#!/bin/sh\n" + script + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def assert_lapack_instead(reason):
    """Refuse native with the reason; let auto take LAPACK and tell the reason."""
    pattern = chain()
    with pytest.raises(InputError, match=reason):
        linear.make("banded", pattern, method="native")
    solver = BandedSolver(pattern)
    factor = solver.factor(random_values(pattern, "definite", 8))
    assert factor.ok.all()
    assert not isinstance(factor.parts, native_band.NativeBand)
    with pytest.raises(InputError, match=reason):  # found out once, told again
        native.library()
    assert "auto: lapack" in solver.describe()


class TestWithoutCompiler:
    """No compiled code to be had."""

    def test_no_compiler(self, cache, monkeypatch, tmp_path):
        """Say what was looked for and what to install."""
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert_lapack_instead(
            r"no C\+\+ compiler is found \(looked for c\+\+, g\+\+, clang\+\+\); install GCC or clang"
        )

    def test_named_compiler_is_missing(self, cache, monkeypatch):
        """Name the compiler that $CXX asks for; take no other instead."""
        monkeypatch.setenv("CXX", "no-such-compiler")
        assert_lapack_instead(r"\$CXX = 'no-such-compiler' is not found")

    @pytest.mark.parametrize("when", ["*-E*", "*-o*"])
    def test_compiler_that_fails(self, cache, monkeypatch, tmp_path, when):
        """Tell the compiler's first complaint, be it about flags or the source."""
        script = f'case "$*" in {when}) echo "error: too old" >&2; exit 1;; esac'
        monkeypatch.setenv("CXX", executable(tmp_path / "old-c++", script))
        assert_lapack_instead("old-c[+][+] fails.*error: too old; set CXX to")

    def test_cache_that_cannot_be_written(self, cache, monkeypatch, tmp_path):
        """Name the directory."""
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        monkeypatch.setenv("CXX", executable(tmp_path / "any-c++", "exit 0"))
        assert_lapack_instead(f"cannot be written to {tmp_path / 'file' / 'torchdismech'}")

    def test_nothing_is_left_behind(self, cache, monkeypatch, tmp_path):
        """Leave no half-made file in the cache when the compiler fails."""
        monkeypatch.setenv("CXX", executable(tmp_path / "bad-c++", 'case "$*" in *-o*) exit 1;; esac'))
        with pytest.raises(InputError):
            native.library()
        assert os.listdir(cache) == []
