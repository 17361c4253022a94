.PHONY: demo test bench faults lint notebooks clean

# At every start TensorFlow reports missing CUDA libraries as errors; 3 is the level that hides them.
# What really fails raises an exception.
export TF_CPP_MIN_LOG_LEVEL ?= 3
export PIP_DISABLE_PIP_VERSION_CHECK = 1

python = .venv/bin/python
installed = .venv/installed

demo: $(installed)
	@$(python) experiments/demo.py --out runs/demo

test: $(installed)
	$(python) -m pytest

bench: $(installed)
	$(python) experiments/bench.py

notebooks: $(installed)
	$(python) -m pip install -qq --editable ".[notebooks]"
	$(python) -m jupyterlab notebooks

faults: $(installed)
	$(python) tests/faults/run.py

lint: $(installed)
	$(python) -m ruff check --config .ci/ruff.toml .
	$(python) -m ruff format --check --config .ci/ruff.toml .
	$(python) -m mypy

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis

# A new pip first: those that come with Python 3.9 and 3.10 search for longer than twenty minutes
# for versions that fit together; pip 26 takes one.
$(installed): setup.cfg pyproject.toml
	@base=$${PYTHON:-$$(.ci/find-python)} && [ -n "$$base" ] && \
	echo "Building .venv with $$("$$base" --version) ($$base). This takes a minute or two, once." && \
	{ $(python) -c "" 2>/dev/null || rm -rf .venv; } && \
	"$$base" -m venv .venv && \
	$(python) -m pip install -qq --upgrade "pip>=24" && \
	$(python) -m pip install -qq --no-compile --editable ".[test]"
	@touch $@
