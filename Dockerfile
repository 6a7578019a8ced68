# gnnserve's images, a target each:
#   docker build --target operator -t gnnserve/operator .   # the controller: no torch, no numpy
#   docker build --target worker   -t gnnserve/worker .     # training, profiling, serving: about 5 GB, most of it torch
# `worker-thin` holds our own code alone and finds everything else in a volume at /packages: for tests.
FROM python:3.11-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.licenses="Apache-2.0"

# What gnnserve depends on, in an environment without pip. A change of our own code leaves these layers as they are, so
# a node that has the previous image pulls kilobytes. pyproject.toml alone makes a distribution without packages.
FROM base AS environment
WORKDIR /src
RUN python -m venv --without-pip /opt/gnnserve \
 && mkdir crds operator worker
COPY pyproject.toml README.md LICENSE ./

FROM environment AS operator-environment
# Bytecode for what is imported only: of the Kubernetes client that is a tenth, and all of it would take 60 MB.
# The command line is no part of an image.
RUN pip --python /opt/gnnserve install --no-cache-dir --no-compile '.[operator]' \
 && /opt/gnnserve/bin/python -c "import aiohttp.web, kopf, kubernetes.aio.client, prometheus_client, pydantic, yaml" \
 && rm /opt/gnnserve/bin/gnnserve

FROM environment AS worker-environment
RUN pip --python /opt/gnnserve install --no-cache-dir '.[worker]' \
 && rm /opt/gnnserve/bin/gnnserve

FROM base AS operator
LABEL org.opencontainers.image.title="gnnserve operator" \
      org.opencontainers.image.description="Turns GNNService objects into running endpoints"
COPY --from=operator-environment /opt/gnnserve /opt/gnnserve
COPY crds/gnnserve_api /app/gnnserve_api
COPY operator/gnnserve_operator /app/gnnserve_operator
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
RUN python -m compileall -q /app
ENV PYTHONPATH=/app:/packages PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8080
CMD ["python", "-m", "gnnserve_worker.pods.serve"]

FROM base AS worker
LABEL org.opencontainers.image.title="gnnserve worker" \
      org.opencontainers.image.description="Trains, profiles and serves the variants of a graph neural network"
COPY --from=worker-environment /opt/gnnserve /opt/gnnserve
COPY crds/gnnserve_api /app/gnnserve_api
COPY worker/gnnserve_worker /app/gnnserve_worker
RUN python -m compileall -q /app
ENV PATH=/opt/gnnserve/bin:$PATH PYTHONPATH=/app
USER 65532:65532
EXPOSE 8080
CMD ["python", "-m", "gnnserve_worker.pods.serve"]
