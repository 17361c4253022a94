.PHONY: demo demo-lite test test-keras2 test-slow bench faults lint notebooks docs clean

# At every start TensorFlow reports missing CUDA libraries as errors; 3 is the level that hides them.
# What really fails raises an exception.
export TF_CPP_MIN_LOG_LEVEL ?= 3
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# TensorFlow is imported in 5 seconds; in 20 where what was compiled is not kept.
unexport PYTHONDONTWRITEBYTECODE

python = .venv/bin/python
# Its SGDW is what ours is compared with. It has no build for Linux on ARM.
addons = "tensorflow-addons; platform_machine != 'aarch64'"
# Without its simulation, which is Ray: the tests have a grid of their own.
flower = "flwr>=1.42,<2; python_version >= '3.11'"
installed = .venv/installed
keras2 = .venv-keras2/bin/python
# Lines of the package. A commit that raises this says what users get for it.
most_lines = 21226

# Each process holds TensorFlow and up to 3 GB: no more than four of them.
shared_out = --numprocesses auto --maxprocesses 4 --dist loadfile

demo: $(installed)
	@$(python) experiments/demo.py --out runs/demo

# Without TensorFlow: what a small device needs, in an environment of its own.
demo-lite: .venv-lite/installed
	@.venv-lite/bin/python experiments/lite_demo.py

.venv-lite/installed:
	@base=$${PYTHON:-$$(.ci/find-python)} && [ -n "$$base" ] && "$$base" -m venv .venv-lite && \
	.venv-lite/bin/python -m pip install -qq numpy pillow "ai-edge-litert!=2.0.*"
	@touch $@

test: $(installed)
	$(python) -m pytest $(shared_out)

# On TensorFlow 2.15, with Keras 2; `make test-keras2 only="FILES"` runs some of them.
test-keras2: .venv-keras2/installed
	$(keras2) -m pytest $(shared_out) $(only)

bench: $(installed)
	$(python) experiments/bench.py

notebooks: $(installed)
	$(python) -m pip install -qq --editable ".[notebooks]"
	$(python) -m jupyterlab notebooks

docs: $(installed)
	@$(python) -m sphinx -W --keep-going -q -b html -d build/docs-trees -c .ci/docs elastic_tf/docs build/docs
	@echo "Open build/docs/index.html in a browser."

# Faults for an hour, and hours of random trainings, notebooks and related papers.
test-slow: faults
	$(python) -m pytest $(shared_out) -m hours

faults: $(installed)
	$(python) tests/faults/run.py
	$(python) tests/faults/fuzz.py

lint: $(installed)
	$(python) -m ruff check --config .ci/ruff.toml .
	$(python) -m ruff format --check --config .ci/ruff.toml .
	$(python) -m mypy
	@lines=$$(find elastic_tf -name '*.py' -exec cat {} + | wc -l) && \
	{ [ $$lines -le $(most_lines) ] || \
	{ echo "The package may have $(most_lines) lines. Received: $$lines. Delete some."; exit 1; }; }

clean:
	rm -rf .venv .venv-keras2 .venv-lite build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis

# Makes an environment in the folder $(1) with the Python that .ci/find-python $(2) finds, and $(3).
# uv takes a third of pip's time; where it reaches no registry, pip does by its settings: a new one,
# for that of Python 3.10 searches for longer than twenty minutes for versions that fit together.
define build
	@base=$${PYTHON:-$$(.ci/find-python $(2))} && [ -n "$$base" ] && \
	echo "Building $(1) with $$("$$base" --version) ($$base). This takes a minute, once." && \
	{ $(1)/bin/python -c "" 2>/dev/null || rm -rf $(1); } && \
	"$$base" -m venv $(1) && \
	$(1)/bin/python -m pip install -qq uv && \
	{ $(1)/bin/uv pip install -q --python $(1)/bin/python --editable $(3) || \
	{ $(1)/bin/python -m pip install -qq --upgrade "pip>=24" && \
	$(1)/bin/python -m pip install -qq --no-compile --editable $(3); }; }
	@touch $@
endef

$(installed): setup.cfg pyproject.toml
	$(call build,.venv,,".[test$(comma)hub]" $(flower))

comma = ,
.venv-keras2/installed: setup.cfg pyproject.toml .ci/keras2.txt
	$(call build,.venv-keras2,keras2,".[test]" -c .ci/keras2.txt $(addons))
