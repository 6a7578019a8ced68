"""wrk: what it is sent, and what is read of what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.wrk import encode_post, parse_output, write_requests

OUTPUT = """\
Running 1s test @ http://127.0.0.1:8080
  1 threads and 32 connections
RESULT {"requests":3000,"seconds":2.000000,"connect":0,"read":1,"write":0,"status":2,"timeout":0,\
"p50_ms":0.1200,"p90_ms":0.2000,"p99_ms":0.5000,"mean_ms":0.1500,"max_ms":3.0000}
"""


def test_a_result_has_its_rate_and_only_the_errors_that_happened() -> None:
    load = parse_output(OUTPUT)
    assert (load.requests, load.requests_per_s) == (3000, 1500.0)
    assert (load.p50_ms, load.p99_ms) == (0.12, 0.5)
    assert load.errors == {"read": 1, "status": 2}


def test_output_without_a_result_is_refused() -> None:
    with pytest.raises(ValueError, match="no result"):
        parse_output("unable to connect to 127.0.0.1:1 Connection refused")


def test_requests_are_written_with_their_lengths_whatever_bytes_they_have(tmp_path: Path) -> None:
    requests = [encode_post(1, "/p", "application/octet-stream", b"\n\0\xff"), b"second"]
    write_requests(tmp_path / "requests", requests)
    data = (tmp_path / "requests").read_bytes()
    for request in requests:
        length, _, data = data.partition(b"\n")
        assert data[: int(length)] == request
        data = data[int(length) :]
    assert data == b""


def test_a_request_is_whole_and_names_its_length() -> None:
    head, _, body = encode_post(8080, "/v1/predict", "application/json", b'{"nodes":[1]}').partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /v1/predict HTTP/1.1"
    assert b"Content-Length: 13" in head
    assert body == b'{"nodes":[1]}'
