"""Planetoid's pickles are read as data: what else a pickle can do is refused, and nothing of it happens."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from tests.support.graphs.published import named, pickled, pickled_array, pickled_csr, pickled_lists

from gnnserve_worker.graph.sources.pickled import read_matrix, read_neighbours
from gnnserve_worker.pickled_data import RefusedPickleError

ARRAY = np.arange(6, dtype=np.int32).reshape(2, 3)


@pytest.mark.parametrize("dtype", ["<i4", "<i8", "<f4", "<f8", "|u1"])
@pytest.mark.parametrize("shape", [(2, 3), (6, 1), (0, 3)])
def test_an_array_is_read_as_numpy_unpickles_it(dtype: str, shape: tuple[int, int]) -> None:
    array = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    written = pickled_array(array)

    found = read_matrix(written)

    expected = pickle.loads(written, encoding="latin1")  # noqa: S301 - written above
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


def test_a_sparse_matrix_is_read() -> None:
    matrix = sp.random_array((20, 7), density=0.3, format="csr", dtype=np.float32, rng=np.random.default_rng(0))

    found = read_matrix(pickled_csr(matrix))

    assert isinstance(found, sp.csr_array)
    assert (found != matrix).nnz == 0


def test_neighbours_are_read() -> None:
    assert read_neighbours(pickled_lists({3: [1, 2], 700: [], 0: [100_000]})) == {3: [1, 2], 700: [], 0: [100_000]}


class _Attack:
    """What an attacker would write: unpickling calls a function."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, (f"open({str(self._path)!r}, 'w')",)


@pytest.mark.parametrize("reader", [read_matrix, read_neighbours])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(reader, protocol: int, tmp_path: Path) -> None:
    attack = pickle.dumps(_Attack(tmp_path / "ran"), protocol=protocol)

    with pytest.raises(RefusedPickleError):
        reader(attack)

    assert not (tmp_path / "ran").exists()
    pickle.loads(attack).close()  # noqa: S301 - the attack does work
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(("module", "name"), [
    ("os", "system"), ("posix", "system"), ("subprocess", "Popen"), ("builtins", "eval"), ("__builtin__", "eval"),
    ("__builtin__", "dict"), ("numpy", "load"), ("numpy.core.multiarray", "fromstring"), ("numpy.f2py", "compile"),
    ("scipy.sparse.csr", "lil_matrix"), ("collections", "OrderedDict"),
])  # fmt: skip
def test_a_name_that_is_no_data_is_refused_by_that_name(module: str, name: str) -> None:
    with pytest.raises(RefusedPickleError, match=f"it names {module}.{name}, which is no data of numpy or scipy"):
        read_matrix(pickled(named(module, name), b"(U\x01xtR"))


def _lists_in_lists(depth: int) -> bytes:
    """Each has the one before it four times: written out, 4 ** depth numbers."""
    made = b"]q\xfe]q\x00K\x01aa"
    for level in range(depth):
        made += b"]q" + bytes([level + 1]) + b"(" + (b"h" + bytes([level])) * 4 + b"ea"
    return pickled(made)


@pytest.mark.parametrize("written", [
    pytest.param(_lists_in_lists(200), id="lists"),
    pytest.param(pickled(b"K\x01" + b"\x85" * 200_000), id="tuples"),
    pytest.param(pickled(named("os.path" * 40, "x")), id="a name"),
])  # fmt: skip
@pytest.mark.parametrize("reader", [read_matrix, read_neighbours])
def test_what_would_be_long_to_write_out_is_refused_in_a_few_words(reader, written: bytes) -> None:
    with pytest.raises(RefusedPickleError) as caught:
        reader(written)
    assert len(str(caught.value)) < 400


def _tuples_in_tuples(depth: int) -> bytes:
    """Its hash takes 3 ** depth steps."""
    return b"K\x01q\x00" + b"".join(
        b"h" + bytes([level]) + b"h" + bytes([level]) + b"\x87q" + bytes([level + 1]) for level in range(depth)
    )


@pytest.mark.parametrize("instructions", [
    pytest.param(b"}(" + _tuples_in_tuples(60) + b"K\x01u", id="as a key"),
    pytest.param(named("numpy", "dtype") + _tuples_in_tuples(60) + b"K\x00K\x01\x87R", id="as a type"),
])  # fmt: skip
def test_no_hash_is_computed_of_what_a_file_made_up(instructions: bytes) -> None:
    with pytest.raises(RefusedPickleError):
        read_matrix(pickled(instructions))


def test_lists_that_are_longer_than_the_file_are_refused() -> None:
    again = b"".join(b"M" + bytes([key, 1]) + b"h\x00" for key in range(100))
    neighbours = b"](" + b"K\x01" * 500 + b"eq\x00"
    with pytest.raises(RefusedPickleError, match="more entries than the file has bytes"):
        read_neighbours(pickled(b"}(K\x00" + neighbours + again + b"u"))


@pytest.mark.parametrize("kind", ["O8", "S4", "V4", "M8", "c8", "i4,i4"])
def test_an_array_of_anything_but_numbers_is_refused_by_its_kind(kind: str) -> None:
    written = pickled_array(ARRAY).replace(b"U\x02i4", b"U" + bytes([len(kind)]) + kind.encode())

    with pytest.raises(RefusedPickleError, match=rf"it calls numpy\.dtype with \('{kind}', 0, 1\)"):
        read_matrix(written)


RECONSTRUCT = named("numpy.core.multiarray", "_reconstruct")
NDARRAY = named("numpy", "ndarray")
DTYPE = named("numpy", "dtype")


@pytest.mark.parametrize("written", [
    pytest.param(pickled(RECONSTRUCT, named("collections", "defaultdict"), b"K\x00\x85U\x01b\x87R"),
                 id="an array of another type"),
    pytest.param(pickled(named("collections", "defaultdict"), DTYPE, b"\x85R"), id="a factory that is not list"),
    pytest.param(pickled(DTYPE, b"U\x02O8K\x00K\x01\x87R"), id="an array of objects"),
    pytest.param(pickled(DTYPE, b"U\x01VK\x00K\x01\x87R"), id="an array of structures"),
    pytest.param(pickled(NDARRAY, b")\x81"), id="an array made in another way"),
    pytest.param(pickled(NDARRAY, b"(tR"), id="a type that is called"),
    pytest.param(pickled(b"](I1\nI2\ne"), id="text integers"),
    pytest.param(pickled(b"K\x01}b"), id="a number that is changed"),
    pytest.param(pickled(b"K\x01"), id="a number"),
    pytest.param(pickled(b"]"), id="a list"),
    pytest.param(pickled(b"K\x01K\x02"), id="two values"),
    pytest.param(pickled(b"t"), id="a tuple that never began"),
    pytest.param(pickled(b"h\x05"), id="what was never put"),
    pytest.param(pickled(b"Pos.system\n"), id="a persistent id"),
    pytest.param(pickled(b"\x82\x01"), id="an extension"),
    pytest.param(pickled(b")" + b"\x85" * 100_000 + b"R"), id="a tuple in a tuple in a tuple"),
    pytest.param(b"", id="empty"),
    pytest.param(b"PK\x03\x04", id="a zip"),
    pytest.param(pickled_array(ARRAY)[:-1], id="without its end"),
    pytest.param(pickled_array(ARRAY)[:60], id="cut off"),
    pytest.param(pickled_array(ARRAY).replace(b"(K\x01(J\x02", b"(K\x01(J\x09"), id="a shape of more than there is"),
    pytest.param(pickled_array(ARRAY).replace(b"(K\x01(J\x02\0\0\0", b"(K\x01(J\xfe\xff\xff\xff"), id="below 0"),
    pytest.param(pickled_array(np.arange(3)), id="one dimension"),
    pytest.param(pickled_lists({1: [2]}), id="a dictionary"),
])  # fmt: skip
def test_anything_but_a_matrix_is_refused(written: bytes) -> None:
    with pytest.raises(RefusedPickleError):
        read_matrix(written)


@pytest.mark.parametrize("change", [
    pytest.param(lambda m: m.indices.__setitem__(0, 9), id="a column beyond the last"),
    pytest.param(lambda m: m.indices.__setitem__(0, -1), id="a column before the first"),
    pytest.param(lambda m: m.indptr.__setitem__(1, 5), id="rows that fall back"),
    pytest.param(lambda m: m.indptr.__setitem__(-1, 99), id="more entries than there are"),
])  # fmt: skip
def test_a_sparse_matrix_that_does_not_fit_together_is_refused(change) -> None:
    matrix = sp.csr_array(np.array([[1, 0, 2], [0, 3, 0], [4, 0, 0]], dtype=np.float32))
    change(matrix)

    with pytest.raises(RefusedPickleError, match="whose parts do not fit together"):
        read_matrix(pickled_csr(matrix))


@pytest.mark.parametrize("written", [
    pytest.param(pickled(b"}(U\x01aK\x01u"), id="a text as key"),
    pytest.param(pickled(b"}(K\x01K\x02u"), id="a number as value"),
    pytest.param(pickled(b"}(K\x01](U\x01aeu"), id="a text in a list"),
    pytest.param(pickled(b"}(K\x01](\x88eu"), id="true in a list"),
    pytest.param(pickled(b"}(K\x01u"), id="a key without value"),
    pytest.param(pickled(b"}(]K\x01u"), id="a list as key"),
    pytest.param(pickled_array(ARRAY), id="an array"),
])  # fmt: skip
def test_anything_but_lists_of_integers_is_refused(written: bytes) -> None:
    with pytest.raises(RefusedPickleError):
        read_neighbours(written)


def test_the_samples_have_the_instructions_of_the_published_files() -> None:
    """So that what is read here is what is read there."""
    published = {
        "PROTO", "GLOBAL", "BINPUT", "EMPTY_TUPLE", "NEWOBJ", "EMPTY_DICT", "MARK", "SHORT_BINSTRING", "BININT1",
        "BININT2", "TUPLE2", "TUPLE1", "TUPLE3", "REDUCE", "NONE", "BININT", "TUPLE", "BUILD", "NEWFALSE", "BINSTRING",
        "NEWTRUE", "BINGET", "SETITEMS", "STOP", "EMPTY_LIST", "APPENDS", "APPEND", "LONG_BINPUT",
    }  # fmt: skip
    written = pickled_csr(sp.csr_array(ARRAY)) + pickled_array(ARRAY) + pickled_lists({1: [2]})

    for part in written.split(b"\x80\x02")[1:]:
        assert {instruction.name for instruction, _, _ in pickletools.genops(b"\x80\x02" + part)} <= published


def test_what_is_shared_within_a_file_is_read_as_often_as_it_is_used() -> None:
    """The published files put names and texts aside and get them again, in both widths, and append one by one."""
    written = pickled(
        named("collections", "defaultdict"), named("__builtin__", "list"), b"\x85R(",
        b"K\x07q\x01]q\x02K\x01aK\x02a", b"K\x08h\x02", b"M\x00\x01r\x00\x01\x00\x00](h\x01j\x00\x01\x00\x00eu",
    )  # fmt: skip

    assert read_neighbours(written) == {7: [1, 2], 8: [1, 2], 256: [7, 256]}
