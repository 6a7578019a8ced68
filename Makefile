# Two commands are the whole set-up: `make run` and `make test`.
SHELL := /bin/bash
CACHE := $(HOME)/.cache/gnnserve
UV := $(CACHE)/uv/bin/uv
PYTHON ?= python3
BIN := .venv/bin
QUICK ?=
FULL ?=
MINUTES ?=
SEED ?=
KILLS ?=
ONLY ?=
BASE ?=
PARTS = $(if $(QUICK),--quick) $(if $(ONLY),--only '$(ONLY)') $(if $(MINUTES),--minutes $(MINUTES))
KIT ?=
HAS ?=
OUT ?=
INTERPRETED ?=
PYTHON_VERSION ?= 3.12
GPU_VERSIONS ?=

.DEFAULT_GOAL := help
.PHONY: help run test test-fast test-campaigns check format audit capabilities generate verdicts figures notebooks screenshots docs docs-serve bench-generation bench-ranking bench-shapes bench-serving bench-protocol bench-sweep bench-conformance bench-shared bench-tracing bench-startup bench-cluster bench-cluster-routing bench-routing bench-peers bench-regression bench-listener bench-roofline bench-scaling bench-soak bench-malformed bench-simulation bench-decision bench-relations bench-models bench-unseen bench-links bench-updates bench-staleness bench-updates-faults bench-frontier bench-channels bench-cascade bench-recommend bench-live-accuracy bench-faults bench-fleet bench-cache stress-cache bench-gpu test-gpu gpu-kit gpu-packages oldest oldest-versions chaos wrk images sboms wheels lint-workflows test-image test-signatures test-image-arm test-examples test-matrix test-platform chromium postgres cluster-binaries kernels clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(UV):
	$(PYTHON) -m venv $(CACHE)/uv
	$(CACHE)/uv/bin/pip install --quiet uv

.venv/installed: pyproject.toml | $(UV)
	@echo "Installing into .venv: about 7 GB, once; the last step compiles for half a minute."
	@$(UV) venv --quiet --allow-existing --python 3.11 .venv
	@$(UV) pip install --compile-bytecode --python $(BIN)/python --group dev --group docs -e '.[all]'
	@$(UV) pip install --quiet --python $(BIN)/python --target .venv/notebooks --no-deps --group notebooks
	touch $@

run: .venv/installed ## train, profile and serve examples/digits.yaml on http://127.0.0.1:8080
	$(BIN)/gnnserve run examples/digits.yaml

check: .venv/installed ## ruff, mypy strict, import-linter, generated files and the figures of pages up to date
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --follow-imports=silent tests/platform
	$(BIN)/lint-imports
	$(BIN)/python -m gnnserve_api.generated.schema --check
	$(BIN)/python -m gnnserve_api.generated.reference --check
	$(BIN)/python -m gnnserve_api.generated.capabilities --check
	$(BIN)/python -m tools.protobuf --check
	$(BIN)/python -m tools.pages --check
	$(BIN)/python -m benchmarks.page.figures --check

test: .venv/installed chromium postgres cluster-binaries ## everything that CI runs
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=recurse check kernels
	$(BIN)/python -m tools.run_tests --oldest-python $(OLDEST)/bin/python $(if $(GPU_VERSIONS),--gpu $(GPU_VERSIONS))

# The oldest versions that gnnserve is tested with, beside those of .venv: 5 GB, once for each list of them. Python 3.12
# where there is one; pyenv hides those that are not chosen.
OLDEST := $(CACHE)/oldest/$(shell sha256sum tools/oldest.txt | cut -c 1-12)
OLDEST_PYTHON := $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python3.12) \
  $(shell python3.12 -c "import sys; print(sys.executable)" 2>/dev/null) 3.11)
oldest: $(OLDEST)/installed
$(OLDEST)/installed: | $(UV)
	@echo "Installing the oldest versions of tools/oldest.txt into $(OLDEST): about 5 GB, once."
	@rm -rf $(CACHE)/oldest
	@$(UV) venv --quiet --python $(OLDEST_PYTHON) $(OLDEST)
	@$(UV) pip install --quiet --compile-bytecode --python $(OLDEST)/bin/python -r tools/oldest.txt
	@touch $@

oldest-versions: .venv/installed ## choose the versions of tools/oldest.txt anew, after pyproject.toml has changed
	$(BIN)/python -m tools.gpu_kit pin --uv $(UV)

# Both tiers' workers find them, and the image that the cluster tier makes.
kernels: .venv/installed
	$(BIN)/python -m tools.kernels

# All cells, in turn with what else there is to compute: CI runs a sample of them with each commit.
test-matrix: .venv/installed kernels ## docs/capabilities.md cell by cell: generated, served, asked in every form, changed; pairs of features by a pairwise cover; 6 minutes
	GNNSERVE_MATRIX=whole $(BIN)/pytest -q -n logical --maxprocesses=8 --dist=load tests/matrix

# `make test` runs a fifth of their cases, another one with each commit: tests/README.md.
test-campaigns: .venv/installed chromium kernels ## all cases of tests of which make test runs a share with each commit; half an hour
	$(BIN)/pytest -q -m "campaign or hypothesis" --ignore=tests/cluster --ignore=tests/platform -n logical --maxprocesses=8 \
	  --dist=loadfile --no-loadscope-reorder

# All but the campaign, which is the operator's every day in trouble: minutes by itself.
test-fast: .venv/installed ## two minutes: the contract, the operator's decisions, the pages; no training, no worker, no cluster
	$(BIN)/pytest -q -n logical --maxprocesses=8 --dist=loadfile --ignore=tests/control/test_campaign.py \
	  tests/api tests/control tests/docs tests/tools

# The worker's page is tested in a real browser. Before cluster-binaries, which wants apt-get for itself for a while.
APT_INSTALL := DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install --yes --quiet --no-install-recommends
chromium:
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || { \
	  echo "Installing Debian's chromium."; \
	  { $(APT_INSTALL) chromium || { apt-get update --quiet && $(APT_INSTALL) chromium; }; } >/dev/null; \
	}

# Tests of the log of changes start servers of their own: the one that Debian's package would start is not made.
CREATECLUSTER := /etc/postgresql-common/createcluster.d
postgres:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || [ "$$(id -u)" != 0 ] || { \
	  echo "Installing Debian's PostgreSQL."; \
	  mkdir -p $(CREATECLUSTER) && echo "create_main_cluster = false" >$(CREATECLUSTER)/gnnserve.conf; \
	  { $(APT_INSTALL) postgresql-15 || { apt-get update --quiet && $(APT_INSTALL) postgresql-15; }; } >/dev/null; \
	}

# Kubernetes is compiled once, beside everything else that has to be installed and tested first.
cluster-binaries:
	@if [ "$$(id -u)" = 0 ] && [ -z "$${KUBECONFIG:-}" ]; then \
	  mkdir -p $(CACHE)/cluster && \
	  (setsid $(PYTHON) -m tests.cluster.harness build >$(CACHE)/cluster/build.log 2>&1 </dev/null &); \
	fi

format: .venv/installed ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

audit: .venv/installed ## known vulnerabilities of the environment and of what each image would contain; needs the network
	$(BIN)/python -m tools.audit --uv $(UV)

capabilities: .venv/installed kernels ## what requests may ask for, in docs/capabilities.md, asked of a server of each column; two minutes
	$(BIN)/python -m tests.matrix.requests

generate: .venv/installed ## the CRD, docs/manifest.md, docs/capabilities.md and tables of other pages from the types, descriptors from the .proto files
	$(BIN)/python -m gnnserve_api.generated.schema
	$(BIN)/python -m gnnserve_api.generated.reference
	$(BIN)/python -m gnnserve_api.generated.capabilities
	$(BIN)/python -m tools.protobuf
	$(BIN)/python -m tools.pages

verdicts: .venv/installed ## judge the results of benchmarks/results anew, after a change of what is wanted of them
	$(BIN)/python -m benchmarks.page.judging

figures: .venv/installed ## write docs/benchmarks.md and the figures of README.md from benchmarks/results
	$(BIN)/python -m benchmarks.page.figures

notebooks: .venv/installed ## run examples/notebooks and keep what they print and draw
	PYTHONPATH=.venv/notebooks $(BIN)/python -m tools.notebooks --write examples/notebooks/*.ipynb

screenshots: .venv/installed chromium ## take the pictures of pages in docs/images anew; two minutes
	$(BIN)/python -m tools.screenshots

docs: .venv/installed ## the site of docs/ into build/site: strict links, search that works offline
	$(BIN)/mkdocs build --strict --quiet

docs-serve: .venv/installed ## the site on http://127.0.0.1:8000, built anew as pages change
	$(BIN)/mkdocs serve --strict

bench-generation: .venv/installed ## accuracies by graph, ranking and factor; generation times
	$(BIN)/python -m benchmarks.accuracy.generation $(PARTS)

bench-relations: .venv/installed wrk ## graphs of several types: accuracy, time per row, beside torch_geometric's own sampler behind FastAPI; ONLY=rows,peers,acm,imdb,batches-acm,batches-imdb in parts
	$(BIN)/python -m benchmarks.relations.relations $(PARTS)

bench-models: .venv/installed wrk ## models as programs: beside the same in torch_geometric behind FastAPI, what one that fails does to its neighbours, models of public repositories, and what each convolution of layers costs; ONLY=speed,neighbours,table,operations in parts
	$(BIN)/python -m benchmarks.models.models $(PARTS)

bench-ranking: .venv/installed ## Random, Greedy and Lasso over real graphs, GraphSAGE and GIN, three seeds; an hour
	$(BIN)/python -m benchmarks.accuracy.ranking $(PARTS)

bench-shapes: .venv/installed ## the paper's tables on graphs of its five shapes: latency, size, memory
	$(BIN)/python -m benchmarks.engine.paper_shapes $(PARTS)

bench-import: .venv/installed ## tables of 100 million edges to a graph: edges per second and peak memory
	$(BIN)/python -m benchmarks.starts.importing $(PARTS)

bench-serving: .venv/installed ## latency and throughput of /v1/predict
	$(BIN)/python -m benchmarks.answers.serving $(PARTS)

bench-protocol: .venv/installed wrk ## what each protocol costs a prediction, beside Triton and MLServer, and a bare gRPC echo; 10 minutes, ONLY=1-seed,1024-seeds in parts
	$(BIN)/python -m benchmarks.answers.protocol $(PARTS)

bench-sweep: .venv/installed ## throughput, latency and its five parts against concurrency; 2 minutes
	$(BIN)/python -m benchmarks.answers.sweep $(PARTS)

bench-conformance: .venv/installed ## the Open Inference Protocol call by call: gnnserve, Triton and MLServer, and by KServe's clients; the others are installed, 4 minutes
	$(BIN)/python -m benchmarks.answers.conformance $(PARTS)

bench-shared: .venv/installed wrk ## several services in one server: fairness beside an overloaded one and beside many connections, memory and throughput; 9 minutes. ONLY=fairness,four,connections in parts
	$(BIN)/python -m benchmarks.load.shared_worker $(PARTS)

bench-tracing: .venv/installed wrk ## what traces cost: none, the default share, all requests; 4 minutes
	$(BIN)/python -m benchmarks.answers.tracing $(PARTS)

bench-startup: .venv/installed ## a worker's start to its first answer over a graph of 1 GB, and its memory
	$(BIN)/python -m benchmarks.starts.startup $(PARTS)

bench-cluster: .venv/installed ## on a real cluster: apply to first answer, objective to worker, live switches under load
	$(BIN)/python -m benchmarks.clusters.cluster $(PARTS)

bench-cluster-routing: .venv/installed ## on a real cluster with Prometheus: following the load, and doing without Prometheus
	$(BIN)/python -m benchmarks.clusters.cluster_routing $(PARTS)

bench-routing: .venv/installed ## our routing, static variants, each loop alone: in time, and how accurate; overload
	$(BIN)/python -m benchmarks.load.routing $(PARTS)

bench-peers: .venv/installed wrk ## against PyG, Triton and GraphBolt on the same work; FULL=1: four more servers, 45 minutes
	$(BIN)/python -m benchmarks.peers $(PARTS) $(if $(FULL),--full)

bench-regression: .venv/installed wrk ## this commit beside BASE= (default: the one that ended the last issue), in ten pairs; 30 minutes, ONLY=arxiv-http,arxiv-engine,reddit-http,reddit-engine,decisions,operator,counts in parts; ONLY=arxiv-first,reddit-first: requests alone, beside the first baseline, in twenty pairs
	$(BIN)/python -m benchmarks.regression.regression $(PARTS) $(if $(BASE),--base $(BASE))

bench-listener: .venv/installed wrk ## our connections beside those of BASE= (default: the last on uvicorn's classes), uvicorn and granian; 7 minutes
	$(BIN)/python -m benchmarks.answers.listener $(PARTS) $(if $(BASE),--base $(BASE))

bench-roofline: .venv/installed ## the engine against bytes/bandwidth + operations/peak, both measured
	$(BIN)/python -m benchmarks.engine.roofline $(PARTS)

bench-scaling: .venv/installed ## cost against graph size, degree skew, batch size, number of variants
	$(BIN)/python -m benchmarks.engine.scaling $(PARTS)

bench-soak: .venv/installed ## twenty minutes (MINUTES=) at 70 % of capacity: memory, errors, drift of the p99
	$(BIN)/python -m benchmarks.load.soak $(if $(QUICK),--quick) $(if $(MINUTES),--length $(MINUTES))

bench-simulation: .venv/installed ## routing in simulated time, against the targets and an oracle
	$(BIN)/python -m benchmarks.load.simulation $(PARTS)

bench-decision: .venv/installed ## what one decision about a batch costs
	$(BIN)/python -m benchmarks.load.decision $(PARTS)

bench-unseen: .venv/installed wrk ## new nodes over stored ones, beside graphs built anew, and hidden test nodes asked one by one; 30 minutes, ONLY=costs-arxiv,costs-reddit,answers,accuracy in parts
	$(BIN)/python -m benchmarks.unseen.unseen $(PARTS)

bench-links: .venv/installed ## LightGCN on gowalla and lastfm beside published figures, and pairs beside nodes; an hour, ONLY='gowalla,lastfm,one type' in parts
	$(BIN)/python -m benchmarks.accuracy.links $(PARTS) $(if $(SEEDS),--seeds $(SEEDS))

bench-updates: kernels wrk ## a graph that changes while it answers: changes per second, exactness, readers, memory; an hour, ONLY='graph arxiv,…' in parts, LOADS= of the parts service
	$(BIN)/python -m benchmarks.changes.updates $(PARTS) $(if $(LOADS),--loads $(LOADS))

bench-staleness: kernels ## stored layers that may be stale: answers that differ, by which rows are made anew; times of requests; changes per second; 20 minutes, ONLY=amazon_photo,amazon_computers,coauthor_cs,facebook_pages,acm,costs,requests,changes,turns in parts
	$(BIN)/python -m benchmarks.staleness.staleness $(PARTS)

bench-updates-faults: .venv/installed postgres ## changes that last over 1,000 kills (KILLS=) of workers, PostgreSQL and both: lost, doubled, recovery; SEED= to vary, MINUTES= to go on later
	$(BIN)/python -m benchmarks.changes.updates_faults $(PARTS) $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED))

bench-live-accuracy: .venv/installed ## labels until a drift is told, false alarms, and what shadows cost requests; 15 minutes
	$(BIN)/python -m benchmarks.accuracy.live_accuracy $(PARTS)

bench-frontier: .venv/installed ## accuracy against latency of every family, on public graphs and the paper's shapes; 80 minutes, MINUTES= or ONLY= in parts; FOLDER= UNTIL=train|search WITHOUT_SEARCH=1 in stages
	$(BIN)/python -m benchmarks.accuracy.frontier $(PARTS) $(if $(FOLDER),--folder $(FOLDER)) $(if $(UNTIL),--until $(UNTIL)) $(if $(WITHOUT_SEARCH),--without-search)

bench-channels: .venv/installed ## fewer hidden channels, for all nodes and in batches, on five public graphs; 15 minutes
	$(BIN)/python -m benchmarks.accuracy.channels $(PARTS)

bench-recommend: .venv/installed ## recommendations over a million nodes, filtered and by a perceptron; recall of unseen queries on real graphs beside other indexes; predictions while PostgreSQL is filled; spam among reviews; 18 minutes, ONLY=million,filters,perceptron,gowalla,arxiv,writing,spam in parts
	$(BIN)/python -m benchmarks.recommend.recommend $(PARTS)

bench-cascade: .venv/installed ## cascades at every threshold beside the convex hull of single variants, on three public graphs; 12 minutes
	$(BIN)/python -m benchmarks.accuracy.cascade $(PARTS)

bench-malformed: .venv/installed ## 100,000 malformed requests and 100,000 hostile overlays: answers, memory, descriptors, tracebacks; 10 minutes, ONLY=requests,overlays in parts
	$(BIN)/python -m benchmarks.answers.malformed $(PARTS)

bench-faults: .venv/installed ## the operator in simulated trouble, random lives, guards taken away; FULL=1: every point; MINUTES= to go on later
	$(BIN)/python -m benchmarks.clusters.faults $(PARTS) $(if $(FULL),--full)

bench-fleet: .venv/installed ## 100 and 500 GNNServices on an API server without nodes: requests, time and memory of the operator
	$(BIN)/python -m benchmarks.clusters.fleet $(PARTS)

bench-cache: .venv/installed ## hit rates of every cache policy in simulation, on graphs of the paper's five shapes
	$(BIN)/python -m benchmarks.engine.cache $(PARTS)

stress-cache: .venv/installed ## ten million reads of a cache that is written meanwhile: nothing torn, nothing stale; SEED= to vary
	$(BIN)/python -m benchmarks.engine.cache_stress $(PARTS) $(if $(SEED),--seed $(SEED))

chaos: .venv/installed ## everything killed and paused at random under load on a real cluster; MINUTES=10, SEED= to repeat
	$(BIN)/python -m benchmarks.chaos.chaos $(if $(QUICK),--quick) $(if $(MINUTES),--length $(MINUTES)) $(if $(SEED),--seed $(SEED))

gpu-kit: .venv/installed ## wheels for a GPU machine that has torch and no network, into gpu-kit/; PYTHON_VERSION=3.12 is its Python's, HAS=scipy,… what else it has
	$(BIN)/python -m tools.gpu_kit make --python $(PYTHON_VERSION) $(if $(HAS),--has $(HAS))

# On such a machine: KIT= and its own Python, whose missing packages are installed beside the kit; no .venv, no network.
KIT_PACKAGES := $(if $(KIT),$(abspath $(KIT))-packages)
OUR_PACKAGES := $(CURDIR)/crds:$(CURDIR)/operator:$(CURDIR)/cli:$(CURDIR)/client:$(CURDIR)/worker
GPU_PYTHON := $(if $(KIT),PYTHONPATH=$(KIT_PACKAGES):$(OUR_PACKAGES) $(PYTHON),$(BIN)/python)
gpu-packages: $(if $(KIT),,.venv/installed)
	@$(if $(KIT),$(PYTHON) -m tools.gpu_kit install $(KIT) --into $(KIT_PACKAGES))

bench-gpu: gpu-packages ## the data path on a GPU: one seed, link, seeds per second, and more; ONLY=part,… in parts, KIT=folder without .venv, OUT=folder of the result
	$(GPU_PYTHON) -m benchmarks.gpu $(PARTS) $(if $(OUT),--out $(OUT))

test-gpu: gpu-packages ## tests on a GPU, most telling first; ONLY=part,… in parts, KIT=folder without .venv, OUT=folder of the result; INTERPRETED=1: in Triton's interpreter, without a GPU
	$(GPU_PYTHON) -m benchmarks.gpu.gpu_tests $(if $(INTERPRETED),--interpreted) $(if $(ONLY),--only $(ONLY)) $(if $(OUT),--out $(OUT))

wrk:
	@command -v wrk >/dev/null || { \
	  [ "$$(id -u)" = 0 ] || { echo "wrk is not installed: apt-get install wrk"; exit 1; }; \
	  $(APT_INSTALL) wrk || { apt-get update --quiet && $(APT_INSTALL) wrk; }; \
	}

# With docker, or what takes its words: ENGINE=podman, buildah, nerdctl.
ENGINE ?= docker
REGISTRY ?= gnnserve
TARGETS ?= operator worker-cpu worker-gpu generate
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
images: ## the images operator, worker-cpu, worker-gpu and generate, as REGISTRY=gnnserve by ENGINE=docker; TARGETS='operator worker-cpu' for some
	@for target in $(TARGETS); do \
	  $(ENGINE) build --target $$target --tag $(REGISTRY)/$$target:$(VERSION) . || exit 1; \
	done

sboms: ## what each image contains, as CycloneDX, into build/sboms
	@mkdir -p build/sboms
	@for target in $(TARGETS); do \
	  $(ENGINE) run --rm --interactive --entrypoint python $(REGISTRY)/$$target:$(VERSION) - $(REGISTRY)/$$target:$(VERSION) \
	    <tools/sbom.py >build/sboms/$$target.cdx.json || exit 1; \
	done

test-image: .venv/installed ## build the images that users run (30 GB of disk), run the digits example from them; half an hour, once kernels of every level are compiled
	$(BIN)/python -m tools.kernels --every-level
	$(BIN)/pytest -s tests/cluster/full_image.py

test-signatures: .venv/installed ## sign image and chart as the workflow would, by a key of the test's own; cosign is compiled once, four minutes of a processor
	$(BIN)/pytest tests/cluster/signed_images.py

test-image-arm: .venv/installed ## build the operator's image and worker-cpu's packages for arm64, and import what they have, by QEMU; half an hour
	$(BIN)/pytest -s tests/cluster/arm_image.py

wheels: .venv/installed ## the wheel and the source distribution, into dist/
	$(UV) build --quiet --out-dir dist

# Compiled by Go in half a minute, once.
lint-workflows: ## actionlint over .github/workflows
	go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 -shellcheck= -pyflakes=

test-examples: .venv/installed cluster-binaries ## every manifest of examples/, unedited, on a real cluster, and its answers those of this machine
	$(BIN)/pytest tests/cluster/all_examples.py

test-platform: .venv/installed cluster-binaries ## scenes of a platform team on a real cluster: availability, deletion, queues, autoscaling, policies; ONLY=words of pytest -k
	$(BIN)/pytest tests/platform $(if $(ONLY),-k "$(ONLY)")

clean: ## forget the environment and every trained revision under .gnnserve
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .gnnserve
