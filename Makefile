# What people do first. Everything else: ./ekiden --help

# Where everything is built once, nothing need be kept for the next time.
ifdef CI
export CARGO_INCREMENTAL = 0
endif

.PHONY: help demo test prepare build check clean

help:
	@echo "make demo     installs what is missing, fetches a stock kernel, boots it, measures policies in it: one table"
	@echo "make test     formatting, lints, documentation, house rules, and all tests, those in a kernel included"
	@echo "make prepare  installs what is missing (Debian, Ubuntu), after saying what"
	@echo "make build    builds the command line, ./ekiden"
	@echo "make check    what 'make test' checks before it runs tests"
	@echo "make clean    removes what was built; kernels stay in the cache (ekiden doctor shows where)"

demo: prepare
	@./ekiden demo

test:
	@scripts/prepare tests
	@$(MAKE) --no-print-directory check
	cargo build --workspace --all-targets
	cargo test --workspace --no-fail-fast

# Formatting, lints and documentation; the kernel's Rust is a workspace of its own.
check:
	cargo fmt --all --check
	cargo fmt --all --check --manifest-path kernel/Cargo.toml
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	RUSTFLAGS="-C panic=abort" cargo clippy --manifest-path kernel/Cargo.toml --target-dir target/kernel-check --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet

prepare:
	@scripts/prepare

build: prepare
	@./ekiden --version

clean:
	cargo clean
	cargo clean --manifest-path kernel/Cargo.toml
