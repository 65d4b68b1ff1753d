# `make` alone lists the targets. Every recipe is one script of
# hack/, which can be read and run by itself.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Everything that is built or downloaded goes here, outside the clone.
export SKYWARD_CACHE ?= $(HOME)/.cache/skyward
export CARGO_TARGET_DIR ?= $(SKYWARD_CACHE)/target

# A cluster counts as given only on make's own command line (make demo
# KUBECONFIG=…): one that a shell's profile exports may be a production cluster.
ifneq (,$(findstring command,$(origin KUBECONFIG)))
export SKYWARD_KUBECONFIG := $(abspath $(KUBECONFIG))
else ifneq (,$(KUBECONFIG))
export SKYWARD_AMBIENT_KUBECONFIG := $(KUBECONFIG)
endif
ifneq (,$(findstring command,$(origin CONTEXT)))
export SKYWARD_CONTEXT := $(CONTEXT)
endif
unexport KUBECONFIG CONTEXT
export CLUSTER REGISTRY KEEP MINUTES SEED ROUNDS PROFILE ONLY ARCHES RELEASE_URL FROM THIRD

##@ Try it

.PHONY: demo
demo: tools ## Install Skyward on a cluster and run the samples (KUBECONFIG= CONTEXT= REGISTRY= CLUSTER=local|kind)
	@hack/demo.sh

.PHONY: demo-down
demo-down: ## Remove everything that the demo made
	@hack/demo-down.sh

##@ Test it

.PHONY: test
test: ## Everything that can fail, ending with stories on the local cluster (KEEP=1 leaves it there; THIRD=all repeats at all clouds)
	@hack/test.sh test

.PHONY: lint
lint: ## Format, clippy, shellcheck, crates of others, generated files
	@hack/test.sh lint

.PHONY: unit
unit: ## Unit, property, doc and Python tests: no cluster, no root
	@hack/test.sh unit

.PHONY: e2e
e2e: ## Only what needs a cluster, the local one: control-plane and end-to-end tests
	@hack/test.sh e2e

.PHONY: bench
bench: tools ## Benchmarks, on the local cluster: `name value unit bar raw-limit` lines (ONLY=cold,tasks,… PROFILE=dev)
	@hack/bench.sh

.PHONY: soak
soak: ## Simulations, crash stories and chaos with ever new seeds (MINUTES=60 SEED= ROUNDS= ONLY=chaos)
	@hack/test.sh soak

.PHONY: fuzz
fuzz: ## Bytes that libFuzzer makes up, for what machines, clouds and users send (MINUTES=5 ONLY=plans,aws,…)
	@hack/test.sh fuzz

.PHONY: upgrade
upgrade: ## Install a release that was made before, and upgrade to this checkout while Tasks run (FROM=DIR)
	@hack/test.sh upgrade

##@ Work on it

.PHONY: generate
generate: compiler ## Write crds/, the chart's copies, reference pages and the agent's protocol anew
	@cargo xtask generate

.PHONY: build
build: compiler ## Operator, kubectl plugin and the static agent (PROFILE=release: fully optimised)
	@hack/build.sh

.PHONY: images
images: tools build ## Operator and node image, imported into the local cluster when it runs (REGISTRY= pushes them there)
	@hack/images.sh

.PHONY: release
release: ## All that is installed without a compiler, in one folder (ARCHES= REGISTRY= RELEASE_URL=; docs/releasing.md)
	@hack/check-tools.sh --no-root
	@hack/release.sh

.PHONY: cluster-up
cluster-up: tools ## A local one-node cluster, without Docker
	@hack/cluster/cluster.sh up
	@hack/cluster/cluster.sh load "$$(hack/images/node.sh)"

.PHONY: cluster-down
cluster-down: ## Stop it and remove every trace of it
	@hack/cluster/cluster.sh down

.PHONY: tools
tools: # What this machine must have; a line for each thing that is missing.
	@hack/check-tools.sh

.PHONY: compiler
compiler: # The same, for what is only compiled.
	@hack/check-tools.sh --compiler

.PHONY: help
help: ## This list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nBuilt and downloaded things are kept in %s.\n' '$(SKYWARD_CACHE)'
