"""How compiled code comes to be: its cache, caches of others, and what happens without a compiler."""

import errno
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.solve.banded_factors import assert_solves
from tests.solve.topologies import chain, cliques, hinges, random_values
from torchdismech.errors import InputError
from torchdismech.native import Unavailable, build, compiled, compiler, library
from torchdismech.solve import linear
from torchdismech.solve.linear import native_band
from torchdismech.solve.linear.banded import BandedSolver


def executable(path, script):
    """Write a shell script and return its path."""
    path.write_text("#!/bin/sh\n" + script + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def exchange(path, content):
    """Put another file in the place of a library that this process has loaded."""
    path.unlink()
    path.write_bytes(content)


@pytest.mark.usefixtures("compiler")
class TestCompiling:
    """The compiled code in its cache."""

    def test_auto_takes_compiled_code(self):
        """Take native for robots alone, few and many, with narrow and wide bands, and describe that."""
        for pattern, robots in product((chain(), hinges(12)), (1, 2, 8)):
            solver = BandedSolver(pattern)
            found = solver.factor(random_values(pattern, "definite", robots)).parts
            assert isinstance(found, native_band.NativeBand)
        assert "native" in solver.describe()
        assert library().made_by in solver.describe()

    @pytest.mark.slow
    def test_several_processes_compile_at_once(self, cache, monkeypatch, tmp_path):
        """Compile once, by one of them, into one file, complete whenever it is there, and not at import."""
        real, log = shutil.which(compiler()[0]), tmp_path / "log"
        logging = f'case "$*" in *" -c "*) echo >> {log};; esac\nexec {real} "$@"'
        monkeypatch.setenv("CXX", executable(tmp_path / "logging-c++", logging))
        script = (
            "import torchdismech; from torchdismech.native import library; assert library.outcome is None; "
            "print(library().vector_bytes)"
        )
        started = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(2)]
        answers = [int(process.communicate()[0]) for process in started]
        assert answers[0] == answers[1] > 0
        assert len(log.read_text().splitlines()) == len(compiled.SOURCES)
        assert [path.suffix for path in cache.iterdir()] == [".so"]

    def test_second_process_does_not_compile(self, cache, monkeypatch):
        """Load what is in the cache."""
        library()
        monkeypatch.setattr(library, "outcome", None)
        monkeypatch.setattr(build, "_library_file", None)
        assert library().vector_bytes > 0

    def test_compiler_that_refuses_native_instructions(self, cache, monkeypatch, tmp_path):
        """Compile for the plain machine, say so, and solve."""
        real = shutil.which(compiler()[0])
        script = f'case "$*" in *-march*) exit 1;; esac\nexec {real} "$@"'
        monkeypatch.setenv("CXX", executable(tmp_path / "plain-c++", script))
        assert "plain-c++ -O3" in library().made_by
        assert "march" not in library().made_by
        for kind in ("definite", "unsymmetric"):
            pattern = chain(symmetric=kind == "definite")
            assert_solves(pattern, random_values(pattern, kind, 11))

    @pytest.mark.slow  # compiles for half a minute
    @pytest.mark.parametrize("width", [16, 64])
    def test_vectors_of_other_machines(self, width, cache, monkeypatch):
        """Solve with shorter and longer vectors than this machine has, which the compiler takes to pieces."""
        monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, f"-DVECTOR_BYTES={width}", "-Wno-psabi"))
        monkeypatch.setattr(build, "_flags_and_target", build._flags_and_target.__wrapped__)  # keeps nothing
        assert library().vector_bytes == width
        for kind, batch, reach in product(("definite", "unsymmetric"), (1, 11), (1, 4, 7, 10, 20)):
            groups = [range(k, k + reach + 1) for k in range(43 - reach)]
            pattern = cliques(groups, 43, kind == "definite", np.arange(43))
            for dtype, transpose in product((torch.float64, torch.float32), (False, True)):
                assert_solves(pattern, random_values(pattern, kind, batch).to(dtype), transpose)

    @pytest.mark.filterwarnings("ignore:there is no compiled code")
    def test_a_file_that_cannot_be_compiled(self, cache, monkeypatch, tmp_path):
        """Say what the compiler says of it, though the other files, beside it, are compiled well."""
        real = shutil.which(compiler()[0])
        script = f'case "$*" in *" -c "*/3.cpp*) echo "3.cpp: error: odd" >&2; exit 1;; esac\nexec {real} "$@"'
        monkeypatch.setenv("CXX", executable(tmp_path / "strict-c++", script))
        monkeypatch.setattr(compiled, "SOURCES", compiled.SOURCES[:4])
        with pytest.raises(InputError, match="strict-c\\+\\+ fails on .*native: 3.cpp: error: odd"):
            library()
        assert not [*cache.iterdir()]

    @pytest.mark.filterwarnings("ignore:there is no compiled code")
    def test_file_that_is_no_library(self, cache, monkeypatch, tmp_path):
        """Name the file that a compiler left and that cannot be loaded."""
        script = 'for word; do case "$before" in -o) echo "not a library" > "$word";; esac; before=$word; done'
        monkeypatch.setenv("CXX", executable(tmp_path / "odd-c++", script))
        with pytest.raises(InputError, match=f"cannot be loaded .*; remove {cache}/native-"):
            library()


@pytest.fixture(scope="module")
def library_file(tmp_path_factory):
    """A compiled library, made once."""
    directory = tmp_path_factory.mktemp("compiled")
    directory.chmod(0o700)
    try:
        command = compiler()
        flags, _ = build._flags_and_target(tuple(command))
        sources = [source.read_bytes() for source in compiled.SOURCES]
        return build._library_file(command, flags, directory, "once", sources, "the sources")
    except Unavailable as missing:
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
        found, load = [], build.ctypes.CDLL

        def recording(path):
            found.append(Path(path).read_bytes())
            return load(path)

        monkeypatch.setattr(build.ctypes, "CDLL", recording)
        return found

    def kept(self, cache, monkeypatch):
        """Return the library that a first process leaves, as one that is about to look for it finds it."""
        library()
        monkeypatch.setattr(library, "outcome", None)
        (path,) = cache.iterdir()
        return path

    def test_compiling_is_told(self, cache, capsys):
        """Tell that something takes long, once."""
        library()
        assert capsys.readouterr().err.count("compiling its own code for this machine") == 1
        library()
        assert not capsys.readouterr().err

    def test_one_compiles_and_others_wait(self, cache, monkeypatch, library_file, tmp_path):
        """Compile once what two want at the same time, and leave no lock behind."""
        log = tmp_path / "log"
        copy = f'for word; do case "$before" in -o) cp {library_file} "$word";; esac; before=$word; done'
        script = f'case "$*" in *-o*) echo >> {log}; sleep 0.3;; esac\n{copy}'
        monkeypatch.setenv("CXX", executable(tmp_path / "slow-c++", script))
        with ThreadPoolExecutor(2) as pool:  # a lock is one of an opened file, so threads stand for processes
            both = [pool.submit(compiled.compiled_source, "int one;") for _ in range(2)]
        assert all(each.result().band_vector_bytes() > 0 for each in both)
        assert len(log.read_text().splitlines()) == 1
        assert [path.suffix for path in cache.iterdir()] == [".so"]

    def test_what_is_old_is_removed(self, cache, monkeypatch):
        """Remove what was killed a day ago, and libraries that nobody has loaded for half a year, as one is made."""
        path, now, days = self.kept(cache, monkeypatch), time.time(), 86_400
        ages = {"compiling-a": 2, "compiling-b": 0.5, "native-a-1.lock": 2, "native-a-1.so": 200, "native-b-2.so": 100}
        ages |= {"notes.txt": 900}
        for name in ages:
            if name.startswith("compiling"):
                (cache / name).mkdir()
                (cache / name / "0.cpp").touch()
            else:
                (cache / name).touch()
        for name, age in (ages | {path.name: 400}).items():
            os.utime(cache / name, 2 * (now - age * days,))
        assert library().vector_bytes > 0  # from the cache, which marks it as used
        assert {*ages, path.name} == {*os.listdir(cache)}
        compiled.compiled_source("int one;")
        left = {"compiling-b", "native-b-2.so", "notes.txt", path.name}
        assert {name for name in os.listdir(cache) if name in ages or name == path.name} == left

    def test_others_do_not_wait_for_ever(self, cache, monkeypatch):
        """Compile, too, where another process takes longer than one waits."""
        monkeypatch.setattr(build.cache, "LONGEST", 0.2)
        cache.mkdir(parents=True)
        with build.cache.alone(cache, "key"), build.cache.alone(cache, "key"):
            assert len([*cache.iterdir()]) == 1
        assert not [*cache.iterdir()]

    @pytest.mark.parametrize("length", [0, 1000, -1])
    def test_truncated(self, cache, monkeypatch, loaded, length):
        """Compile again where a library is cut off, and put the new one in its place."""
        path = self.kept(cache, monkeypatch)
        whole = path.read_bytes()
        exchange(path, whole[:length])
        assert library().vector_bytes > 0
        assert loaded == [whole, whole]
        assert [file.read_bytes() for file in cache.iterdir()] == [whole]

    def test_other_content(self, cache, monkeypatch, loaded):
        """Load no file whose content is not what its name says, and none with a name of before."""
        path = self.kept(cache, monkeypatch)
        whole = path.read_bytes()
        exchange(path, whole.replace(b"band_", b"bond_"))
        path.with_name(path.name.rpartition("-")[0] + ".so").write_bytes(b"planted")
        library()
        assert loaded == [whole, whole]

    def test_changed_header(self, cache, monkeypatch):
        """Compile again where a header is another one, although all that includes it is as before."""
        path = self.kept(cache, monkeypatch)
        headers = build._headers()
        assert set(headers) == {"lanes.h", "vectors.h"}
        monkeypatch.setattr(build, "_headers", lambda: headers | {"lanes.h": headers["lanes.h"] + b"// changed"})
        library()
        assert len(list(cache.iterdir())) == 2 and path.exists()

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
        library()
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
            assert library().vector_bytes > 0
        assert loaded == [content, content]
        assert [file.read_bytes() for file in cache.iterdir()] == [b"planted"]

    def test_directory_that_cannot_be_made(self, cache, monkeypatch, loaded, tmp_path):
        """Compile for this process alone, and say so once: what stands there is no directory."""
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        place = tmp_path / "file" / "torchdismech"
        with pytest.warns(RuntimeWarning, match=f"for this process alone.*, as {place} cannot be written to") as warned:
            for _ in range(2):
                assert library().vector_bytes > 0
                monkeypatch.setattr(library, "outcome", None)  # and again for generated code, of which there is more
        assert len(warned) == 1 and len(loaded) == 2

    @pytest.mark.parametrize("who", ["this process", "the compiler"])
    def test_full_disk(self, cache, monkeypatch, loaded, library_file, tmp_path, who):
        """Compile for this process alone, say so, and leave nothing behind."""
        said, write = os.strerror(errno.ENOSPC), Path.write_bytes

        def written(path, content):
            if path.is_relative_to(cache):
                raise OSError(errno.ENOSPC, said, str(path))
            return write(path, content)

        if who == "this process":
            monkeypatch.setattr(Path, "write_bytes", written)
        else:
            full = f'case "$word" in {cache}/*) echo "cannot write: {said}" >&2; echo "error: 1" >&2; exit 1;; esac'
            script = f'for word; do case "$before" in -o) {full}; cp {library_file} "$word";; esac; before=$word; done'
            monkeypatch.setenv("CXX", executable(tmp_path / "full-c++", script))
        with pytest.warns(RuntimeWarning, match=f"this process alone.*{cache} cannot be written to .*{said}"):
            assert library().vector_bytes > 0
        assert len(loaded) == 1 and not [*cache.iterdir()]

    def test_directory_of_another_user(self, cache, monkeypatch, loaded):
        """Load nothing of what is there."""
        path = self.kept(cache, monkeypatch)
        exchange(path, b"planted")
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)  # temporary directories are another's, too
        said = f"no safe place for compiled code: {cache} belongs to user {user}, not to {user + 1}"
        with pytest.warns(RuntimeWarning, match=said), pytest.raises(InputError, match=said):
            library()
        assert len(loaded) == 1

    def test_nowhere_to_write(self, cache, monkeypatch, tmp_path):
        """Do without compiled code where nothing can be written, and name both places."""
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path / "missing"))
        assert_lapack_instead(f"no safe place for compiled code: {tmp_path / 'file'}.* cannot be .*{tmp_path}/missing")

    def test_no_safe_place_at_all(self, cache, monkeypatch):
        """Do without compiled code where even temporary files are not the user's own."""
        cache.mkdir(parents=True)
        cache.chmod(0o777)
        (cache.parent / "temporary").mkdir()
        (cache.parent / "temporary").chmod(0o777)
        monkeypatch.setattr(build.tempfile, "tempdir", str(cache.parent / "temporary"))
        assert_lapack_instead("no safe place for compiled code: others can write to .*, and others can .*temporary")

    def test_sticky_parents_are_safe(self, cache):
        """Keep code below a directory such as /tmp, where nobody can replace what is another's."""
        cache.parent.mkdir()
        cache.parent.chmod(0o1777)
        library()
        assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, *cache.iterdir())] == [0o700, 0o700]


def assert_lapack_instead(reason):
    """Refuse native with the reason, and warn of it once; let auto take LAPACK and tell the reason."""
    pattern = chain()
    with (
        pytest.warns(RuntimeWarning, match=f"there is no compiled code, and steps .* 80 times.*: .*{reason}"),
        pytest.raises(InputError, match=reason),
    ):
        linear.make("banded", pattern, method="native")
    solver = BandedSolver(pattern)
    factor = solver.factor(random_values(pattern, "definite", 8))
    assert factor.ok.all()
    assert not isinstance(factor.parts, native_band.NativeBand)
    with pytest.raises(InputError, match=reason):  # found out once, told again
        library()
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

    def test_text_that_is_no_command(self, cache, monkeypatch):
        """Name a $CXX with a quote that does not end, which ended each step in an error of Python's shlex."""
        monkeypatch.setenv("CXX", '"g++')
        assert_lapack_instead(r"""\$CXX = '"g\+\+' is no command \(No closing quotation\)""")

    @pytest.mark.parametrize("when", ["*-E*", "*-o*"])
    def test_compiler_that_fails(self, cache, monkeypatch, tmp_path, when):
        """Tell the compiler's first complaint, be it about flags or the source."""
        script = f'case "$*" in {when}) echo "error: too old" >&2; exit 1;; esac'
        monkeypatch.setenv("CXX", executable(tmp_path / "old-c++", script))
        assert_lapack_instead("old-c[+][+] fails.*error: too old; set CXX to")

    def test_package_in_a_zip(self, cache, monkeypatch):
        """Say that there are no C++ files where the package does not lie as files."""
        monkeypatch.setattr(compiled, "SOURCES", [])
        assert_lapack_instead("C[+][+] files are not beside it, as where the package is in a zip")

    def test_nothing_is_left_behind(self, cache, monkeypatch, tmp_path):
        """Leave no half-made file in the cache when the compiler fails."""
        monkeypatch.setenv("CXX", executable(tmp_path / "bad-c++", 'case "$*" in *-o*) exit 1;; esac'))
        with pytest.warns(RuntimeWarning, match="no compiled code"), pytest.raises(InputError):
            library()
        assert os.listdir(cache) == []
