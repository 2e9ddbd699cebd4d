# Commands for development. `make demo` and `make test` need no preparation; see tests/README.md for details.
.PHONY: help setup environment demo run test test-newest test-matrix faults fuzz check bench compare conformance dist pins

bin := .venv/bin

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 14

setup: ## environment in .venv, RabbitMQ if it is not installed, compiled modules; fast if nothing has changed
	@deploy/local/setup

environment: ## the same without compilation
	@deploy/local/setup environment

demo: ## broker, sidecar and sample traffic with results and reasons; KEEP=1 leaves both running
	@deploy/local/setup demo
	@$(bin)/python -m deploy.local.demo

run: setup ## sidecar in front of the broker that RABBITMQ_URL names; CONFIG=config/oxproxy.yaml
	@$(bin)/python -m deploy.local.run

test: ## all tests, with a private RabbitMQ
	@deploy/local/setup tests
	@deploy/local/test

test-newest: ## tests/broker on the newest RabbitMQ of Debian
	@deploy/local/setup newest
	@RABBITMQ_ROOT=$$($(bin)/python -m tests.other_rabbitmq) && export RABBITMQ_ROOT && env -u RABBITMQ_URL \
		$(bin)/python -m pytest -q --numprocesses=3 --dist=loadfile --no-loadscope-reorder tests/broker

test-matrix: ## slow tests: RabbitMQ 3.8 to 4.3, all vectors, a built image, random examples; installs their requirements
	@deploy/local/setup matrix
	@$(bin)/python -m pytest -q -m matrix
	@$(bin)/python -m pytest -q -m 'hypothesis and not matrix' --hypothesis-profile=random

faults: ## random faults under load, each message matched; FAULTS=20 SECONDS=3600 SEED= RELEASE= RESULT=build/faults.json
	@deploy/local/setup $(if $(RELEASE),newest)
	@$(bin)/python -m tests.campaign $(if $(FAULTS),--faults $(FAULTS)) $(if $(SECONDS),--seconds $(SECONDS)) \
		$(if $(SEED),--seed $(SEED)) $(if $(RELEASE),--release $(RELEASE)) $(if $(RESULT),--result $(RESULT))

fuzz: ## mutated frames and files; FRAMES=100000 SECONDS=120 SEED= RESULT=build/fuzz.json
	@deploy/local/setup fuzz
	@$(bin)/python -m tests.fuzz $(if $(FRAMES),--frames $(FRAMES)) $(if $(SECONDS),--seconds $(SECONDS)) \
		$(if $(SEED),--seed $(SEED)) $(if $(RESULT),--result $(RESULT))

check: environment ## format, lint, types, import contracts, dead code, spelling, wording, commit subjects; no tests
	$(bin)/ruff format --check .
	$(bin)/ruff check .
	$(bin)/mypy
	$(bin)/lint-imports
	$(bin)/vulture
	$(bin)/codespell
	$(bin)/python -m deploy.wording
	$(bin)/python -m deploy.commits

bench: ## the table of docs/explanation/performance.md
	@deploy/local/setup bench
	@$(bin)/python -m tests.bench

compare: ## oxproxy, RabbitMQ's headers exchange, HAProxy and a copying relay; RESULT=build/compare.json
	@deploy/local/setup bench
	@$(bin)/python -m tests.bench.compare $(if $(RESULT),--result $(RESULT))

conformance: environment ## the decision core against the vector files, without a broker
	@$(bin)/python -m tests.conformance

dist: ## files of a release in dist/: sdist, wheels, image, chart, SBOM; PYTHONS="python3.12 python3.13" adds wheels
	@deploy/local/setup dist
	@$(bin)/python -m deploy.release $(addprefix --python ,$(PYTHONS))

pins: ## rewrite the exact versions in deploy/local/requirements*.txt after a change of dependencies
	@deploy/local/pins
