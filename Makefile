# Everything a developer does, one target each. `make help` lists them.
#
#   JOBS=n             compile and test at most n at a time (default: all processors)
#   CMAKE_ARGS=...     further arguments of the configure step, such as -DCMAKE_PREFIX_PATH=...
#   ARGS=...           arguments of what `make run` runs, such as --seed 2
#   CTEST_ARGS=...     further arguments of ctest, such as -R Agent

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
RUNS ?= 5000000
MINUTES ?= 15
KILLS ?= 1000

configure = cmake --preset $(1) $(CMAKE_ARGS)
compile = cmake --build build/$(1) --parallel $(JOBS)
check = ctest --preset $(1) --parallel $(JOBS) $(CTEST_ARGS)

.DEFAULT_GOAL := help
.PHONY: help build run test lint programs bench asan asan-quick tsan fuzz model soak neighbours install format clean

help: ## this list
	@sed -nE 's/^([a-z -]+):.*## (.*)/make \1\n      \2/p' $(firstword $(MAKEFILE_LIST))

build: ## everything but benchmarks, the soak and the neighbours, into build/release
	@scripts/bootstrap
	$(call configure,release)
	$(call compile,release)

run: ## the demo: an agent and two observers learn to balance a pole; ARGS=--help
	@scripts/bootstrap
	$(call configure,release)
	$(call compile,release) --target cartpole
	build/release/examples/cartpole $(ARGS)

test: build ## everything, then the whole test suite
	$(call check,release)

lint: ## formatting; the library by clang: lock annotations, each file and public header by itself
	@scripts/bootstrap build fuzz format
	git ls-files '*.h' '*.cpp' | xargs clang-format --dry-run --Werror
	$(call configure,clang)
	$(call compile,clang)

programs: ## benchmarks, the soak and the neighbours, which the suite does not need, into build/release
	@scripts/bootstrap
	$(call configure,release)
	$(call compile,release) --target benchmarks weft_soak weft_neighbours

bench: ## measure against the raw limits; writes a table and JSON
	@scripts/bootstrap build bench
	$(call configure,release)
	$(call compile,release) --target benchmarks
	bench/run build/release

asan asan-quick tsan: ## the test suite under ASan and UBSan / only what is below calls / under ThreadSanitizer
	@scripts/bootstrap
	$(call configure,$@)
	$(call compile,$@)
	$(call check,$@)

fuzz: ## RUNS inputs (default 5,000,000) to each fuzz target
	@scripts/bootstrap build fuzz
	$(call configure,fuzz)
	$(call compile,fuzz)
	RUNS=$(RUNS) tests/fuzz/run build/fuzz

model: ## search the model of the reference protocol exhaustively, with spin
	@scripts/bootstrap model
	tests/model/run build/model

soak: ## everything at once over 4 processes, with faults, for MINUTES (default 15); needs root
	@scripts/bootstrap
	$(call configure,release)
	$(call compile,release) --target weft_soak
	build/release/tests/soak/weft_soak $(MINUTES)

neighbours: ## workers of one host: KILLS are killed, 5 are stopped; for MINUTES each, one is hostile, and 16 send to all; needs root
	@scripts/bootstrap
	$(call configure,release)
	$(call compile,release) --target weft_neighbours
	$(call configure,asan)
	$(call compile,asan) --target weft_neighbours
	build/release/tests/neighbours/weft_neighbours kills $(KILLS)
	build/release/tests/neighbours/weft_neighbours freezes 5
	ASAN_OPTIONS=detect_leaks=0:protect_shadow_gap=0 \
	  build/asan/tests/neighbours/weft_neighbours scribbles $$((60 * $(MINUTES)))
	build/release/tests/neighbours/weft_neighbours all_to_all 16 $$((60 * $(MINUTES)))

install: build ## library, headers, tool and CMake package into PREFIX
	cmake --install build/release --prefix $(PREFIX)

format: ## clang-format over all C++ files
	@scripts/bootstrap format
	git ls-files -co --exclude-standard '*.h' '*.cpp' | xargs -r clang-format -i

clean: ## remove build/
	rm -rf build
