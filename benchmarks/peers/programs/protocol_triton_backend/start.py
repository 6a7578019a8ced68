"""Triton's own Python backend, without PyTriton, with the model of `protocol.py` beside this file.

The server and the backend are those that PyTriton's wheel brings. Its stub for this Python is put beside the backend,
as PyTriton does, in a copy in the working folder, and this process becomes the server.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytriton

http_port, grpc_port = sys.argv[1:]
package = Path(pytriton.__file__).parent
folder = Path.cwd() / "triton"
backend, model = folder / "backends" / "python", folder / "models" / "digits"
shutil.copytree(package / "tritonserver" / "backends" / "python", backend)
stubs = package / "tritonserver" / "python_backend_stubs"
version = f"{sys.version_info.major}.{sys.version_info.minor}"
shutil.copy(stubs / version / "triton_python_backend_stub", backend)
(model / "1").mkdir(parents=True)
shutil.copy(Path(__file__).with_name("config.pbtxt"), model)
shutil.copy(Path(__file__).with_name("model.py"), model / "1")
command = [
    str(package / "tritonserver" / "bin" / "tritonserver"), f"--model-repository={model.parent}",
    f"--backend-directory={backend.parent}", "--http-address=127.0.0.1", f"--http-port={http_port}",
    "--grpc-address=127.0.0.1", f"--grpc-port={grpc_port}", "--allow-metrics=false",
]  # fmt: skip
libraries = package.parent / "nvidia_pytriton.libs"
variables = {
    **os.environ, "LD_LIBRARY_PATH": str(libraries), "PATH": f"{sys.exec_prefix}/bin:{os.environ['PATH']}",
}  # fmt: skip
os.execve(command[0], command, variables)  # noqa: S606
