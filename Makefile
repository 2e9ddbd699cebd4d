# What a person types here. `make demo` and `make test` need nothing done before; tests/README.md has details.
.PHONY: help setup environment demo run test test-matrix check bench conformance pins

bin := .venv/bin

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 14

setup: ## environment in .venv, RabbitMQ where none is installed, compiled modules; quick when nothing changed
	@deploy/local/setup

environment: ## the same without compilation, for what is short
	@deploy/local/setup environment

demo: ## broker, sidecar and sample traffic: who got what, and why; KEEP=1 leaves both running
	@deploy/local/setup demo
	@$(bin)/python -m deploy.local.demo

run: setup ## sidecar in front of the broker that RABBITMQ_URL names; CONFIG=config/oxproxy.yaml
	@$(bin)/python -m deploy.local.run

test: ## every test, against a private RabbitMQ
	@deploy/local/setup tests
	@deploy/local/test

test-matrix: ## the slow ones: RabbitMQ 4.0, all vectors, a built image; installs what only they need
	@deploy/local/setup matrix
	@$(bin)/python -m pytest -q -m matrix

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

conformance: environment ## the decision core against the vector files, without a broker
	@$(bin)/python -m tests.conformance

pins: ## exact versions in deploy/local/requirements*.txt again, after a change of dependencies
	@deploy/local/pins
