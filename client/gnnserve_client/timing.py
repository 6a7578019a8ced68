"""Where the server's time went, as the header `Server-Timing` tells it."""

from __future__ import annotations


def parse_server_timing(header: str) -> dict[str, float]:
    """`queue;dur=0.1, sample;dur=0.2` → milliseconds by stage; entries without a duration are left out."""
    durations: dict[str, float] = {}
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key == "dur":
                try:
                    durations[name] = float(value)
                except ValueError:
                    continue
    return durations
