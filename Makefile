# What people do first. Everything else: ./ekiden --help

# Where everything is built once, nothing need be kept for the next time.
ifdef CI
export CARGO_INCREMENTAL = 0
endif

.PHONY: help demo test quick nightly test-fresh prepare prepare-tests build check clean

help:
	@echo "make demo     installs what is missing, fetches a stock kernel, boots it, measures policies in it: one table"
	@echo "make quick    formatting, lints, documentation, and all tests that need no kernel"
	@echo "make test     the same and all tests that boot kernels: what has to pass before a change lands"
	@echo "make nightly  what takes hours; resumes where it was interrupted; one report"
	@echo "make test-fresh  the first command and make quick in bare roots of Debian 12 and 13"
	@echo "make prepare  installs what is missing (Debian, Ubuntu), after saying what"
	@echo "make build    builds the command line, ./ekiden"
	@echo "make check    formatting, lints and documentation"
	@echo "make clean    removes what was built; kernels stay in the cache (ekiden doctor shows where)"

demo: prepare
	@./ekiden demo

# What runs the parts, says every two seconds what it does, and names the slowest parts at the end.
# In the workspace, as then crates of others have the features with which everything is built after it.
SUITE = scripts/with-progress "building what runs the tests" \
	cargo build --quiet --workspace --bin ekiden-suite && $${CARGO_TARGET_DIR:-target}/debug/ekiden-suite

test quick: prepare-tests
	@$(SUITE) $@

nightly: prepare-tests
	@$(SUITE) nightly

check:
	@$(SUITE) check

prepare-tests:
	@scripts/prepare tests

test-fresh:
	@scripts/test-fresh

prepare:
	@scripts/prepare

build: prepare
	@./ekiden --version

clean:
	cargo clean
	cargo clean --manifest-path hosts/kernel/Cargo.toml
