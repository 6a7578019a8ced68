# gnnserve's images, a target each (`make images` builds all; docs/install.md says which pod has which):
#   operator    the controller: no torch, no numpy
#   worker-cpu  serving on the CPU: no torch
#   worker-gpu  serving on an NVIDIA GPU: worker-cpu's packages, torch and Triton
#   generate    imports, training and profiling, and all that the other two do: worker-gpu's packages and a few more
# Each holds the layers of packages of the one before it. `worker-thin` holds our own code alone and finds everything
# else in a volume at /packages: for tests.
FROM python:3.11-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.licenses="Apache-2.0"

# What gnnserve depends on, in an environment without pip. A change of our own code leaves these layers as they are, so
# a node that has the previous image pulls a megabyte or two. pyproject.toml alone makes a distribution without packages.
FROM base AS environment
WORKDIR /src
RUN python -m venv --without-pip /opt/gnnserve \
 && mkdir cli client crds describe operator worker
COPY pyproject.toml README.md LICENSE ./

FROM environment AS operator-environment
# Bytecode for what is imported only: of the Kubernetes client that is a tenth, and all of it would take 60 MB.
# The command line is no part of an image.
RUN pip --python /opt/gnnserve install --no-cache-dir --no-compile '.[operator]' \
 && /opt/gnnserve/bin/python -c "import aiohttp.web, kopf, prometheus_client, pydantic, yaml" \
 && rm /opt/gnnserve/bin/gnnserve*

FROM environment AS serve-environment
# Of MKL, serving loads the single-threaded matrix products of whatever processor it finds: 440 MB out of a gigabyte. The
# rest is threads (OpenMP, TBB), vector mathematics, clusters, GPUs (SYCL), static libraries and debug symbols. A missing
# library ends the process, so those for old processors (mc3, def) stay. On other machines than x86-64 there is no MKL.
RUN pip --python /opt/gnnserve install --no-cache-dir '.[serve,programs,tracing]' \
 && rm /opt/gnnserve/bin/gnnserve* \
 && find /opt/gnnserve/lib -maxdepth 1 -type f,l -regextype posix-extended \
      ! -regex '.*/libmkl_(rt|core|intel_lp64|sequential|def|mc3|avx2|avx512|avx10)\.so.*' -delete \
 && rm -rf /opt/gnnserve/opt /opt/gnnserve/lib/cmake /opt/gnnserve/lib/pkgconfig

FROM base AS operator
LABEL org.opencontainers.image.title="gnnserve operator" \
      org.opencontainers.image.description="Turns GNNService objects into running endpoints"
COPY --from=operator-environment /opt/gnnserve /opt/gnnserve
COPY crds/gnnserve_api /app/gnnserve_api
COPY operator/gnnserve_operator /app/gnnserve_operator
COPY operator/gnnserve_routing /app/gnnserve_routing
RUN python -m compileall -q /app
ENV PATH=/opt/gnnserve/bin:$PATH PYTHONPATH=/app
USER 65532:65532
EXPOSE 8080
CMD ["python", "-m", "gnnserve_operator"]

FROM base AS worker-thin
LABEL org.opencontainers.image.title="gnnserve worker, thin" \
      org.opencontainers.image.description="The worker's own code; its packages are mounted at /packages"
COPY crds/gnnserve_api /app/gnnserve_api
COPY worker/gnnserve_worker /app/gnnserve_worker
ENV PYTHONPATH=/app:/packages PYTHONDONTWRITEBYTECODE=1
# What is mounted at /packages while this is built: other versions compile again. Nothing mounted: pods compile. It runs on
# the machine that builds it, and on no other kind.
ARG PACKAGES=none
RUN python -m compileall -q /app \
 && if [ "$PACKAGES" != none ]; then python -m gnnserve_worker.compile_kernels --ship --own-level --known /kernels; fi
USER 65532:65532
EXPOSE 8080
CMD ["python", "-m", "gnnserve_worker.pods.serve"]

FROM base AS serve-packages
# A pod that waits for its certificate shows one that `openssl` makes (serving/security/placeholder.py).
RUN apt-get update -q \
 && apt-get install -q --yes --no-install-recommends openssl \
 && rm -rf /var/lib/apt/lists/*
COPY --from=serve-environment /opt/gnnserve /opt/gnnserve
ENV PATH=/opt/gnnserve/bin:$PATH PYTHONPATH=/app

FROM serve-packages AS worker-cpu
LABEL org.opencontainers.image.title="gnnserve worker" \
      org.opencontainers.image.description="Serves the variants of a graph neural network on the CPU"
COPY crds/gnnserve_api /app/gnnserve_api
COPY worker/gnnserve_worker /app/gnnserve_worker
# Kernels too, for every level of processors that the image may meet: pods can keep nothing, and need not compile. Who
# compiled them before may mount their folder at /kernels (`python -m tools.kernels --every-level`).
RUN python -m compileall -q /app \
 && python -m gnnserve_worker.compile_kernels --ship --known /kernels
USER 65532:65532
EXPOSE 8080
CMD ["python", "-m", "gnnserve_worker.pods.serve"]

FROM serve-packages AS gpu-packages
# On a GPU, Triton compiles the few lines between Python and the driver at its first start, and has no other way.
RUN apt-get update -q \
 && apt-get install -q --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
COPY --from=environment /src /src
RUN pip --python /opt/gnnserve install --no-cache-dir '/src[gpu]' \
 && rm /opt/gnnserve/bin/gnnserve*

FROM gpu-packages AS worker-gpu
LABEL org.opencontainers.image.title="gnnserve worker for GPUs" \
      org.opencontainers.image.description="Serves the variants of a graph neural network on an NVIDIA GPU"
COPY --from=worker-cpu /app /app
# For GPUs of three generations, of the networks that `spec.model` makes by default: that needs no GPU.
RUN python -m gnnserve_worker.gpu.compile_ahead /app/gnnserve_worker/gpu/compiled
USER 65532:65532
EXPOSE 8080
CMD ["python", "-m", "gnnserve_worker.pods.serve"]

FROM gpu-packages AS generate-packages
RUN pip --python /opt/gnnserve install --no-cache-dir '/src[generate]' \
 && rm /opt/gnnserve/bin/gnnserve*

FROM generate-packages AS generate
LABEL org.opencontainers.image.title="gnnserve generation" \
      org.opencontainers.image.description="Imports, trains, profiles and serves the variants of a graph neural network"
COPY --from=worker-gpu /app /app
USER 65532:65532
EXPOSE 8080
CMD ["python", "-m", "gnnserve_worker.pods.generate"]
