# Every target makes its own .venv on first use; a second run installs nothing.
# make PYTHON=/path/to/python TARGET chooses one of 3.10 to 3.13; after `make clean`, if there is a .venv with another.
.DEFAULT_GOAL := help
.PHONY: help demo horovod native test test-all check phrases pictures look docs coverage mutants release setup lock clean
BIN := .venv/bin
CPP = $(shell git ls-files 'serving/*.cc' 'serving/*.h' 'workflows/*.cc' 'workflows/*.h')
SHELL_SCRIPTS = $(filter-out %.awk,$(shell git ls-files '*.sh' serving/deploy/bin .ci/run))

help: ## list all targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: ## create .venv with everything a developer needs
	@PYTHON="$(PYTHON)" scripts/setup.sh cpu,onnx,lightgbm,catboost,torch,xgboost,tune,dev
	@$(BIN)/python -m rankline.workflows.native.build
	@$(if $(filter setup,$(MAKECMDGOALS)),echo "ready: source .venv/bin/activate; rankline --help")

demo: ## go from raw ratings to measured scores in one command (generated data)
	@PYTHON="$(PYTHON)" scripts/setup.sh cpu,onnx,lightgbm,catboost
	@$(BIN)/python -m rankline.workflows.native.build
	@$(BIN)/rankline run movielens $(ARGS)

horovod: ## build Horovod for several workers against the TensorFlow in .venv (MPI=1 adds MPI to Gloo)
	@PYTHON="$(PYTHON)" scripts/setup.sh cpu,onnx
	@scripts/horovod.sh $(if $(MPI),mpi)

native: setup ## recompile C++ backends whose sources changed (cached in ~/.cache/rankline/native)

check: setup ## run ruff, the type checker, shellcheck, the C++ format check and the spell checker, and look for banned phrases
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run -Werror $(CPP)
	@$(BIN)/shellcheck --severity=warning $(SHELL_SCRIPTS)
	@git ls-files -z | xargs -0 $(BIN)/codespell
	@$(MAKE) --silent phrases

phrases: # expressions that read like a translation
	@! git grep -nPi -f scripts/banned-phrases.txt -- workflows training serving rankline bench Makefile

test: check ## run the tests for daily work: unit and integration tests that are not marked slow (10 minutes on 2 cores)
	@scripts/test.sh -m 'not slow' $(ARGS)

test-all: check ## run all tests required before merging: also slow ones, full pipelines, documented commands, workers, containers (30 minutes)
	@printf '%s\n' $(filter %.cc,$(CPP)) | xargs -P $$(getconf _NPROCESSORS_ONLN) -n 1 $(BIN)/clang-tidy --quiet -p .
	@scripts/horovod.sh
	@scripts/test.sh -o testpaths=tests --hypothesis-profile=thorough $(ARGS)

pictures: setup ## renew the pictures of README and documents from a real run (10 minutes; needs tmux and chromium, and an idle machine)
	@$(BIN)/python scripts/pictures.py

look: setup ## check in a browser that PAGES fit every window, light and dark, and are accessible (needs chromium)
	@$(BIN)/uv run --quiet --no-project --with playwright==1.65.2 --with axe-playwright-python==0.1.8 scripts/look.py $(PAGES)

docs: setup ## build the documentation site, build/site/index.html; broken links and unknown names are errors
	@$(BIN)/sphinx-build -q -W --keep-going docs build/site

coverage: setup ## report lines not covered by any test: build/coverage/index.html (takes as long as test-all)
	@scripts/horovod.sh
	@scripts/test.sh -o testpaths=tests --cov --cov-report=html:build/coverage --cov-report=term:skip-covered $(ARGS)

mutants: setup ## mutate the code that determines metrics, in a copy, and list mutants no test detects (one hour on 2 cores; MODULE=rankline.training.evaluation limits it)
	@rm -rf mutants
	@$(BIN)/mutmut run $(if $(MODULE),'$(MODULE)*')
	@$(BIN)/mutmut results

release: setup ## check version, changelog and metadata; write wheel, source and SBOM to build/release and try the wheel in a clean environment
	@scripts/release.sh

lock: setup ## regenerate constraints.txt from pyproject.toml
	@$(BIN)/uv pip compile pyproject.toml --group pinned --extra cpu --extra torch --extra onnx --extra lightgbm --extra catboost --extra xgboost --extra tune --extra horovod --extra dev --universal --python-version 3.10 \
		--annotation-style line --no-header --quiet --output-file constraints.txt --upgrade

clean: ## remove the environment and caches, but keep work/ and model_repository/
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build mutants *.egg-info
