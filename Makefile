# All commands of the project. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup setup-tests demo live-demo schema test test-fast coverage soak live-matrix incidents drill fuzz airflow-test check reference pictures format bench dist lock sbom audit site clean distclean

VENV := .venv
DIST := dist
TOOLS = python -m venv .venv-tools && .venv-tools/bin/python -m pip --disable-pip-version-check --quiet install
CODE := $(wildcard aggregator config jobs live_demo observe pipeline schemas sources udfs warehouse airflow_dags tests benchmarks setup)
FAST := $(addprefix tests/,config live_demo udfs/before_replace udfs/rid test_structure.py test_documents.py test_compose.py)
BENCH ?= $(filter-out benchmarks/drill.py,$(shell grep -l __main__ benchmarks/*.py))

# The environment's own commands come first, for Spark's launcher too, which asks the PATH for python3.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# Without compiled modules each of the many processes of a run compiles the project again.
unexport PYTHONDONTWRITEBYTECODE

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Set up what runs (the other commands do it too, and add what they need)
	@setup/setup.sh

setup-tests: ## Set up what tests and checks need as well
	@setup/setup.sh with-tests

demo: setup ## Aggregate the recordings of two replicasets, and show what to look at
	@rm -rf .state/demo
	@spark-submit jobs/demo.py --config conf/demo.yaml --page .state/demo/report.html

live-demo: ## Show it on live servers: daemon, stream, SQL, page; ARGS="--kill-after 20" kills a master
	@setup/setup.sh with-tarantool
	@python -m live_demo $(ARGS)

test-fast: setup-tests ## Run the tests of formats, rules and configuration in a minute: no Spark, no server
	@python -m pytest -q -n auto $(FAST) -m "not spark and not live and not soak and not browser" $(ARGS)

test: ## Run every test; ARGS="-k name" for some of them
	@setup/setup.sh with-tests with-tarantool with-chromium
	@python -m pytest -n auto $(ARGS)

coverage: ## Run every test, and fail where fewer lines ran than the floor in pyproject.toml
	@setup/setup.sh with-tests with-tarantool with-chromium
	@python -m coverage erase
	@python -m coverage run -m pytest -n auto $(ARGS)
	@python -m coverage combine --quiet
	@python -m coverage report

soak: ## Run the tests that take many minutes: kills after every step, takeovers, holes
	@setup/setup.sh with-tests with-tarantool with-s3 with-pipelines
	@setup/setup.sh with-promtool || true
	@SOAK=1 python -m pytest -m "soak or property" $(ARGS)

incidents: ## Cause each incident with each server, as root, and write docs/incidents.md; SERVERS="PATH PATH"
	@setup/setup.sh with-tests with-tarantool
	@setup/setup.sh with-promtool || true
	@python -m tests.incidents.matrix $(SERVERS) --out docs/incidents.md

drill: ## Cause the disasters of the runbook on live servers, and measure the recovery; ARGS="--rows 50000 --only region"
	@setup/setup.sh with-tests with-tarantool
	@python -m benchmarks.drill $(ARGS)

live-matrix: ## Run the live tests with each server, and write docs/live-tests.md; SERVERS="PATH PATH"
	@setup/setup.sh with-tests with-tarantool
	@python -m tests.live.matrix $(SERVERS) --out docs/live-tests.md

fuzz: setup-tests ## Fuzz all that reads bytes of others; ARGS="--cases 1000000 --seed 5" for more or others
	@python -m tests.fuzz $(ARGS)

airflow-test: setup-tests ## Install Airflow in its own environment, test the DAGs there, and run one for real
	@setup/setup.sh with-airflow
	@python -m pytest -m "" tests/airflow_dags $(ARGS)

check: setup-tests ## Lint, formatting, types
	@ruff check $(CODE)
	@ruff format --check $(CODE)
	@mypy $(CODE)

schema: setup ## Write the JSON Schemas of the configuration, conf/*schema.json, from its models
	@python -m config.json_schema

reference: setup ## Write the reference pages, docs/reference, from commands, configuration, tables and metrics
	@python setup/reference.py

pictures: ## Make the pictures of the pages, docs/pictures, anew: the flow, and the report in a browser
	@setup/setup.sh with-tests with-chromium
	@python setup/pictures.py

format: setup-tests ## Format the code, and mend what ruff can mend by itself
	@ruff check --fix $(CODE)
	@ruff format $(CODE)

bench: ## Measure, and print ratios; BENCH=decode ARGS="--rows 100000" for one of them
	@setup/setup.sh with-tests with-tarantool
	@for name in $(basename $(notdir $(BENCH))); do echo "== $$name"; python -m benchmarks.$$name $(ARGS) || exit 1; done

dist: setup ## Pack the project: a wheel, and for spark-submit the same as a zip (--py-files) and the scripts of the jobs
	@rm -rf build $(DIST)
	@python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(DIST) .
	@for wheel in $(DIST)/*.whl; do cp $$wheel $${wheel%-py3-none-any.whl}.zip; done
	@python -m zipfile -e $(DIST)/*.whl build/wheel && mkdir $(DIST)/jobs
	@cp $$(grep -l __main__ build/wheel/aggregator/jobs/*.py) $(DIST)/jobs
	@rm -rf build
	@ls $(DIST)/*

lock: setup-tests ## Write requirements.lock anew from pyproject.toml (ARGS="--upgrade" for newer versions)
	@head -n 1 requirements.lock > requirements.new
	@pip-compile --quiet --all-extras --allow-unsafe --strip-extras --annotation-style line --no-header \
	  --no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	  $(ARGS) --output-file requirements.lock pyproject.toml
	@cat requirements.lock >> requirements.new && mv requirements.new requirements.lock
	@python setup/locks.py project

site: ## Build the documentation site into .state/site; a broken link fails
	@setup/setup.sh with-docs
	@NO_MKDOCS_2_WARNING=1 mkdocs build --strict

sbom: setup ## Write dist/sbom.json: every package of requirements-run.lock, as CycloneDX
	@mkdir -p $(DIST)
	@$(TOOLS) cyclonedx-bom==7.5.0
	@.venv-tools/bin/cyclonedx-py requirements requirements-run.lock --of JSON -o $(DIST)/sbom.json
	@echo "$(DIST)/sbom.json"

audit: setup ## Ask the advisory service about every pinned package; 1: known vulnerabilities, 3: it cannot be reached
	@$(TOOLS) pip-audit==2.10.1
	@setup/audit.sh requirements.lock $(wildcard setup/*.lock)

clean: ## Remove what the commands above have written, but not the environment
	@rm -rf build dist .state .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage spark-warehouse *.egg-info
	@find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## Remove the environment as well
	@rm -rf $(VENV) .venv-airflow .venv-tools
