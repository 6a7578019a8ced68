"""Where tokens come from, what is one, and that no message shows any."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.kubernetes.mounted import mount

from gnnserve_api.errors import InputError
from gnnserve_api.http.tokens import LONGEST_TOKEN, MOST_TOKENS, check_token, read_client_token, read_tokens

A, B = "alpha-0123456789abcdef", "beta-0123456789abcdef=="


def test_every_value_of_a_mounted_secret_is_a_token(tmp_path: Path) -> None:
    mount(tmp_path / "tokens", {"a": A, "b": B + "\n", "again": A})
    found = read_tokens(tmp_path / "tokens")
    assert (found.tokens, found.problems) == ((A, B), ())


def test_every_line_of_a_file_is_a_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{A}\n\n  {B}  \r\n")
    assert read_tokens(path).tokens == (A, B)
    assert read_client_token(path) == A


BAD = [
    pytest.param("", id="nothing"),
    pytest.param("short", id="too short"),
    pytest.param("a" * (LONGEST_TOKEN + 1), id="too long"),
    pytest.param("pass word 0123456789", id="with a blank"),
    pytest.param("geheim-0123456789-ß", id="beyond ASCII"),
    pytest.param("a\x000123456789abcdef", id="with a zero byte"),
    pytest.param("0123456789abcdef\n0123456789abcdef", id="two lines"),
]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_value_is_named_by_its_file_and_not_shown_and_the_good_one_is_kept(tmp_path: Path, bad: str) -> None:
    mount(tmp_path, {"bad": bad, "good": A})
    found = read_tokens(tmp_path)
    assert found.tokens == (A,)
    (problem,) = found.problems
    assert str(problem).startswith(f"{tmp_path / 'bad'}: ")
    assert not bad or bad not in str(problem)
    assert A not in repr(found)


@pytest.mark.parametrize("bad", [value for value in BAD if value.id != "two lines"])
def test_a_clients_token_is_held_to_the_same(tmp_path: Path, bad: str) -> None:
    with pytest.raises(InputError) as caught:
        check_token(bad, "environment variable GNNSERVE_TOKEN")
    assert not bad or bad not in str(caught.value)
    path = tmp_path / "token"
    path.write_text(bad)
    with pytest.raises(InputError) as caught:
        read_client_token(path)
    assert not bad or bad not in str(caught.value)


def test_a_place_without_tokens_and_one_with_too_many_give_none(tmp_path: Path) -> None:
    mount(tmp_path / "empty", {})
    assert read_tokens(tmp_path / "empty").tokens == ()
    assert "holds no token" in str(read_tokens(tmp_path / "empty").problems[0])
    many = tmp_path / "many"
    many.write_text("\n".join(f"{A}{number}" for number in range(MOST_TOKENS + 1)))
    assert read_tokens(many).tokens == ()
    assert "keep at most 64" in str(read_tokens(many).problems[0])


def test_a_place_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_tokens(tmp_path / "nowhere")


def test_a_value_that_cannot_be_read_keeps_nothing_alive_that_was_taken_out_beside_it(tmp_path: Path) -> None:
    mount(tmp_path, {"huge": "a" * 300_000, "good": A})
    found = read_tokens(tmp_path)
    assert found.tokens == (A,)
    assert "more than" in str(found.problems[0])
    assert str(found.problems[0]).startswith(f"{tmp_path / 'huge'}: ")


def test_a_file_of_tokens_that_is_too_large_has_none(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    huge.write_bytes(f"{A}\n".encode() + b"a" * 300_000)
    found = read_tokens(huge)
    assert found.tokens == ()
    assert "more than" in str(found.problems[0])
    with pytest.raises(InputError, match="more than"):
        read_client_token(huge)
