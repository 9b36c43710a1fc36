# Two commands matter: `make book` and `make test`. Each sets up .venv by itself.
PYTHON ?= python3
PROFILE ?= offline
THREADS ?= 1
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
# Threads that spin while they wait slow a shared machine down up to thirtyfold.
export OMP_WAIT_POLICY := PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup book paper rehearse test older settings lint unit nbval bench peers families cluster clean

help:  ## show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install the pinned environment

# torch from an index of its own, as TORCH_INDEX=https://download.pytorch.org/whl/cpu, and no other package from there.
TORCH = $(if $(TORCH_INDEX),$(1)/bin/pip install --quiet --no-deps --index-url $(TORCH_INDEX) $$(grep ^torch requirements.txt))

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(call TORCH,$(VENV))
	$(BIN)/pip install --quiet --requirement requirements.txt
	$(BIN)/pip install --quiet --no-deps --editable .
	@# Chapters import `experiments`, which is no part of the package.
	@echo "$(CURDIR)" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/experiments.pth"
	@touch $@

book: $(STAMP)  ## execute what changed, two chapters at once, and build _build/html (PROFILE=offline|smoke|paper)
	@$(BIN)/lrputils build --profile $(PROFILE) $(if $(REPOSITORY_URL),--repository-url $(REPOSITORY_URL))

# What takes long is measured first, into folders that a killed run goes on in; chapters 3 to 5 read them.
SWEEP := $(BIN)/lrputils evaluate --methods ig,rollout,grad-x-input,attention-x-grad,attnlrp,cp-lrp,mask-gradient \
  --readouts word,sum,post-norm --layers --part-size 16 $(if $(DRY_RUN),--dry-run)
paper: $(STAMP)  ## the same with the paper's models and data, from the hub, on a GPU; after a kill it goes on; DRY_RUN=1 says what it takes
	@$(SWEEP) --model textattack/bert-base-uncased-SST-2@main --dataset stanfordnlp/sst2@main \
	  --split validation --limit 872 --seed 0 --curves 1 --out _build/paper/sst2
	@$(SWEEP) --model fabriceyhc/bert-base-uncased-imdb@main --dataset stanfordnlp/imdb@main \
	  --split test --limit 1000 --seed 0 --curves 16 --out _build/paper/imdb
ifdef DRY_RUN
	@echo "and the chapters: 2 trains small networks, some hours of one core; 6 to 11 take at most 872 sentences each"
else
	@$(BIN)/lrputils build --profile paper --processes 1
endif

rehearse: $(STAMP)  ## every line of `make paper`, on a small stand-in, and chapters on a pretended GPU
	$(BIN)/python -m pytest -m rehearsal tests/book/test_profiles.py tests/book/test_own_run.py tests/test_device.py

test: lint  ## lint, unit tests, the chapters' outputs, the book's own checks
	$(PYTEST) --dist loadfile --no-loadscope-reorder --nbval tests chapters
	@$(BIN)/python -m tests.book.browser

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	@$(BIN)/python -c 'import subprocess; subprocess.run(["$(BIN)/mypy"], check=True, timeout=120)'

# Two processes of a thread each, of which each imports and collects everything; one that has ended
# a file or a chapter takes the next.
PYTEST = OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n 2

unit: $(STAMP)
	$(PYTEST) --dist loadfile --no-loadscope-reorder tests

# Chapters with most cells first.
nbval: $(STAMP)
	$(PYTEST) --dist loadscope --nbval chapters

older: export ATEN_CPU_CAPABILITY := default
older: export DNNL_MAX_CPU_ISA := SSE41
older: nbval  ## the chapters' outputs again, with the instructions of an older processor

# Instruction set, oneDNN's name for it, threads. A processor without AVX-512 cannot try the last
# two: make settings SETTINGS="default,SSE41,1 avx2,AVX2,2"
SETTINGS ?= default,SSE41,1 avx2,AVX2,2 avx512,DEFAULT,1 avx512,DEFAULT,2
settings: $(STAMP)  ## unit tests and outputs under four settings of instruction set and threads
	@for setting in $(SETTINGS); do \
	  echo "== $$setting"; set -- $$(echo $$setting | tr , ' '); \
	  ATEN_CPU_CAPABILITY=$$1 DNNL_MAX_CPU_ISA=$$2 \
	    $(MAKE) --no-print-directory unit nbval THREADS=$$3 || exit 1; \
	done

bench: $(STAMP)  ## measure speed, side by side, with the outputs compared
	@$(BIN)/python -m experiments.bench

peers:  ## other libraries as judges: installs them into _build/peers, fails where they differ
	$(PYTHON) -m venv _build/peers
	$(call TORCH,_build/peers)
	_build/peers/bin/pip install --quiet -r requirements.txt -r tests/peers/requirements.txt
	_build/peers/bin/pip install --quiet --no-deps --editable .
	OMP_NUM_THREADS=$(THREADS) _build/peers/bin/python -m pytest tests/peers/judges.py

families: $(STAMP)  ## how each family of transformers is covered, on a tiny model of it: results/families.csv
	@$(BIN)/python -m experiments.families

cluster:  ## Ray for real: installs it into _build/ray, then kills workers, a node and the driver
	$(PYTHON) -m venv _build/ray
	_build/ray/bin/pip install --quiet -r requirements.txt
	$(call TORCH,_build/ray)
	_build/ray/bin/pip install --quiet --editable '.[ray]'
	OMP_NUM_THREADS=$(THREADS) _build/ray/bin/python -m pytest tests/cluster/sharing.py

clean:  ## remove what was built (the environment stays)
	rm -rf _build
