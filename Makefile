# Everything a developer runs. Needs Rust, Python 3.11 or newer and make; the rest is installed
# into .venv.
#
#   make dev    .venv with PyTorch and the wheel, and target/release/neffuse
#   make demo   RMSNorm through torch.compile, its binary on the simulator, and its times
#   make test   all tests
#   make lint   formatting and lints of Rust and Python, documentation
#   make bench  the table of targets: ours, met or missed, and peers; about 20 minutes from a clean clone
#   make bench-targets TARGETS="block dag"  ours alone, of the cases whose names hold the words
#   make bench-compile  compile times of small graphs, instructions checked per second
#   make bench-graph  time of canonicalize and fuse per node, 1,000 to 100,000 nodes
#   make bench-gym  extraction on the extraction gym's e-graphs, one line a file
#   make bench-scale SCALE=dag  times of each pass on large graphs, of those whose names hold the words
#   make bench-packing  offsets for ../shared/benchmarks/minimalloc: height against bound, nodes, time
#   make values  Llama blocks of full size on the simulator, 64 rows against a reference; minutes, 4 GB
#   make mutations  every program of the tests damaged in every place; half an hour
#   make fit    timing constants fitted to measured kernels, docs/timing.md; some minutes
#   make fuzz   every reader of files, FUZZ_SECONDS each; make fuzz-short takes a minute
#   make random SEEDS=0..10000  random programs and graphs through all stages
#   make bench-calls  what a call through torch.compile costs beside the work

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin

RUST_SOURCES := $(shell find ir passes codegen neff simulator compiler python/src -name '*.rs') \
	Cargo.toml Cargo.lock $(wildcard */Cargo.toml)
WHEEL_SOURCES := $(RUST_SOURCES) pyproject.toml $(wildcard python/neffuse/*.py)

.PHONY: fit dev demo test test-rust test-python snapshots lint bench bench-targets bench-compile bench-calls bench-packing bench-graph bench-gym bench-scale mutations values fuzz fuzz-short fuzz-tool random

dev: target/release/neffuse .venv/.wheel

target/release/neffuse: $(RUST_SOURCES)
	cargo build --release --locked --package compiler --bin neffuse
	touch $@

.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit("neffuse needs Python 3.11 or newer: make PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	touch $@

# The wheel's own requirements bring PyTorch; on the first run that is a download of some minutes.
.venv/.wheel: .venv/.created $(WHEEL_SOURCES)
	rm -rf target/wheels
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir target/wheels .
	$(BIN)/pip install --quiet --force-reinstall --no-deps target/wheels/neffuse-*.whl
	$(BIN)/pip install --quiet "$$(echo target/wheels/neffuse-*.whl)[test]"
	touch $@

demo: dev
	$(BIN)/python examples/rms_norm.py

test: test-rust test-python snapshots

# Every snapshot that a test touches is noted, so that `snapshots` can tell which none touches.
test-rust: export INSTA_SNAPSHOT_REFERENCES_FILE = $(CURDIR)/target/snapshot-references
test-rust: export INSTA_UPDATE = no
test-rust: dev
	rm -f $$INSTA_SNAPSHOT_REFERENCES_FILE
	if cargo nextest --version > /dev/null 2>&1; then cargo nextest run --locked; else cargo test --locked; fi

test-python: dev
	$(BIN)/python -m pytest

snapshots: test-rust
	@touch target/snapshot-references
	@orphans=$$(find . -name '*.snap' -not -path './target/*' -not -path './.venv/*' -exec realpath {} + \
		| sort | comm -23 - <(xargs -r -d '\n' realpath < target/snapshot-references | sort -u)); \
	if [ -n "$$orphans" ]; then echo "no test uses these snapshots:"; echo "$$orphans"; exit 1; fi
	@echo "every snapshot is used"

lint: .venv/.wheel
	$(BIN)/ruff check python examples benches
	$(BIN)/ruff format --check python examples benches
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# Peers compile the same graphs, once each, before us. Those that do not install are left out.
bench: dev .venv-peers/.installed
	cargo bench --locked --bench targets -- graphs target/bench/graphs
	$(BIN)/python benches/capture.py --folder target/bench/graphs llama7b
	rm -f target/bench/peers.json
	.venv-peers/bin/python benches/peers.py target/bench/graphs target/bench/peers.json --peers "ONNX Runtime" OpenVINO XLA IREE
	$(BIN)/python benches/peers.py target/bench/graphs target/bench/peers.json --peers Inductor
	cargo bench --locked --bench targets -- table

.venv-peers/.installed: benches/peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet -r benches/peers.txt || grep -v '^#' benches/peers.txt | while read -r peer; do \
		.venv-peers/bin/pip install --quiet "$$peer" || echo "$$peer does not install here"; done
	touch $@

TARGETS ?=

bench-targets:
	cargo bench --locked --bench targets -- table $(TARGETS)

bench-compile:
	cargo bench --locked --bench compile --bench checks

bench-graph:
	cargo bench --locked --bench graph_passes

bench-gym:
	cargo bench --locked --bench extraction_gym

SCALE ?=

bench-scale:
	cargo bench --locked --bench scale -- $(SCALE)

bench-packing:
	cargo bench --locked --bench packing

fit:
	cargo run --release --locked --package timing -- fit --write

values:
	cargo test --locked --test acceptance -- --ignored --nocapture blocks::full_size

mutations:
	cargo test --locked --test acceptance -- --ignored --nocapture mutations::everywhere

CARGO_FUZZ := 0.13.1
FUZZ_SECONDS ?= 300

fuzz-tool:
	@cargo fuzz --version > /dev/null 2>&1 || cargo install --locked --version $(CARGO_FUZZ) cargo-fuzz

fuzz: fuzz-tool
	fuzz/run $(FUZZ_SECONDS)

# Seven targets in a minute.
fuzz-short: FUZZ_SECONDS := 8
fuzz-short: fuzz

SEEDS ?= 0..10000

# A line for each failure, with how to run its seed again, and one about all of them.
random:
	@NEFFUSE_RANDOM_SEEDS=$(SEEDS) cargo test --locked --quiet --test acceptance many_random \
		-- --ignored --nocapture | sed -n '/seed/p'

bench-calls: dev
	$(BIN)/python benches/call_overhead.py
