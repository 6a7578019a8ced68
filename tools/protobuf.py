"""Descriptors of the messages that the gRPC listener speaks, from their `.proto` files: `python -m tools.protobuf`.

They are committed, so that installing and serving need no compiler. Modules that `protoc` writes would need a runtime
of their own version, and claim names in the process that a client of the same protocol claims too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib import resources
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

FOLDER = Path(__file__).resolve().parents[1] / "worker/gnnserve_worker/serving/grpc"
DESCRIPTORS = FOLDER / "descriptors.binpb"


def compile_descriptors() -> FileDescriptorSet:
    """What the `.proto` files say. Raises RuntimeError where they cannot be read."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "descriptors"
        sources = sorted(path.name for path in FOLDER.glob("*.proto"))
        included = str(resources.files("grpc_tools") / "_proto")
        arguments = ("protoc", f"-I{FOLDER}", f"-I{included}", "--include_imports", f"--descriptor_set_out={target}")
        if protoc.main([*arguments, *sources]):
            raise RuntimeError(f"protoc cannot read {', '.join(sources)}; what it found is above")
        return FileDescriptorSet.FromString(target.read_bytes())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the file would change")
    wanted = compile_descriptors()
    if not parser.parse_args().check:
        DESCRIPTORS.write_bytes(wanted.SerializeToString(deterministic=True))
        return 0
    # Compared as messages: another version of the compiler may lay them out otherwise.
    if FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()) == wanted:
        return 0
    print(f"{DESCRIPTORS.name} differs from the .proto files; run `make generate`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
