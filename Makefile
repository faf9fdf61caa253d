# Every target makes what it needs: a fresh machine has Python 3.11+ and make, nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Tests start hundreds of short processes: each would compile all it imports where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo demo-cluster test test-fast test-long test-all check bench run sim sim-cluster late planted fuzz soak campaign reliability pages lock format clean

$(READY): requirements.lock pyproject.toml
	@echo "making $(VENV) from requirements.lock: a minute or two, once"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)  ## about a minute (half of it Spark's first start): write, copy, replay, kill, lose the disk, replay again
	$(BIN)/python -m thermocline.demo

demo-cluster: $(READY)  ## three brokers, about a minute: one loses its disk under load, then all three; every byte is checked
	$(BIN)/python -m thermocline.demo.cluster

test-fast: $(READY)  ## the short unit tests, without processes and Spark: a minute and a half
	$(BIN)/python -m pytest -n 3 --dist worksteal --hypothesis-profile=fast -m "not peer and not slow and not long and not not_fast" tests/unit

test: $(READY)  ## tests that need only Python and take seconds: ten minutes on two cores
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not peer and not slow and not long" tests

test-long: $(READY)  ## the longer tests that need only Python (tests/long.txt): twenty minutes
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "long and not peer and not slow" tests

test-all: $(READY)  ## also tests that need Java, versitygw or much time (skips name what is missing)
	$(BIN)/python -m pytest -n 2 --dist worksteal tests

check: $(READY)  ## style, types, layers; of the tests, that each name exists
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini tests
	$(BIN)/lint-imports

bench: $(READY)  ## compare with Apache Kafka, then with Spark's connector, on this machine; writes bench/RESULTS.md
	$(BIN)/python bench/run.py
	$(BIN)/python bench/spark.py

run: $(READY)  ## a broker on ./demo-data, bucket beside it
	$(BIN)/thermocline serve --data-dir $(CURDIR)/demo-data/broker

sim: $(READY)  ## make sim SEED=7 replays one simulated run; BROKERS=3: with three brokers
	$(BIN)/python -m tests.sim --seed $(or $(SEED),1) $(if $(BROKERS),--brokers $(BROKERS))

sim-cluster: $(READY)  ## 3 000 simulated runs of three brokers: hours; SEEDS=1..100 a part of them, JOBS=2 two at once
	$(BIN)/python -m tests.sim --brokers 3 --jobs $(or $(JOBS),1) --seeds $(or $(SEEDS),1..3000)

late: $(READY)  ## two brokers whose work outlives its role or topic; SEEDS=1..20000 (2 000 take seven minutes), JOBS=1
	$(BIN)/python -m tests.sim.pair --jobs $(or $(JOBS),2) --seeds $(or $(SEEDS),1..2000)

planted: $(READY)  ## every planted bug must be caught, each with its seed; ONLY="02 140", RESULTS=file continues an interrupted run
	$(BIN)/python -m tests.sim.planted $(ONLY) $(if $(RESULTS),--results $(RESULTS))

fuzz: $(READY)  ## hostile bytes into every parser, 10^7 of them (Atheris, installed when missing); RUNS=n ONLY=a,b KEEP=1
	$(BIN)/python -m tests.fuzz $(if $(RUNS),--runs $(RUNS)) $(if $(ONLY),--only $(ONLY)) $(if $(KEEP),--keep)

soak: $(READY)  ## make soak MINUTES=30: mixed load and rolling SIGKILL, then half as long without kills; BROKERS=3: with three; SECURE=1: over TLS with logins; checks every record
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),30) $(if $(BROKERS),--brokers $(BROKERS)) $(if $(SECURE),--secure)

campaign: $(READY)  ## make campaign MINUTES=5 SEED=7 BUCKET=versitygw SECURE=1 TRANSACTIONS=1: three brokers, stock clients, a nemesis; checks every record
	$(BIN)/python -m tests.campaign --minutes $(or $(MINUTES),5) --seed $(or $(SEED),1) --bucket $(or $(BUCKET),directory) $(if $(SECURE),--secure) $(if $(TRANSACTIONS),--transactions)

reliability: $(READY)  ## write docs/RELIABILITY.md again: hours; QUICK=1 minutes, ONLY=simulation,fuzz a part, RENDER=1 only the page
	$(BIN)/python -m tests.reliability $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(RENDER),--render)

pages: $(READY)  ## write docs/configuration.md and docs/compatibility.md from the code
	$(BIN)/python -m tests.pages

lock: $(READY)  ## write requirements.lock from pyproject.toml
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --extra read --extra spark --generate-hashes -o requirements.lock pyproject.toml

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) demo-data build dist *.egg-info
