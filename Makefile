# InferScope. `make help` lists what can be made; the work is in scripts/.
#
# Settings, on the command line or in the environment:
#   VERSION     of the binaries (default: what git describe says)
#   GOARCH      of the binaries: amd64 or arm64 (default: this machine's)
#   PKG         packages for test-go and bench-go (default: ./...)
#   BENCH       benchmarks for bench-go (default: all)
#   RACE=0      `make test-all` without the second pass under the race detector
#   LINT=0      `make test-all` without golangci-lint, whose first build takes minutes
#   TORCH_PYTHON interpreter with PyTorch for test-torch (default: one is made in build/torch)
#   OUT         where test-gpu leaves its reports (default: build/gpu)

SHELL := /bin/bash
.DEFAULT_GOAL := build
PKG ?= ./...
BENCH ?= .
OUT ?= build/gpu
export VERSION PKG BENCH OUT

.PHONY: help build package image generate check-generate cudasim demo test test-go bench bench-cost bench-paired bench-go bench-recordings bench-diagnosis bench-whatif test-cycles test-gpu test-kernels test-torch test-judges fuzz lint fmt count web check-web test-browser clean test-starved test-all

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

build: ## bin/inferscoped and bin/inferscope, static
	@scripts/build.sh

package: ## dist/: deb and rpm of GOARCH with units, man pages and completions, and SHA256SUMS (DIST, VERSION)
	@scripts/package.sh

image: ## dist/image: an OCI image for amd64 and arm64, made without a container engine, and bills of materials (DIST, VERSION)
	@scripts/release.sh

demo: ## watch a program on a simulated GPU and print the report: no GPU needed, under 2 minutes
	@scripts/demo.sh

test: ## unit and end-to-end tests but the long ones, with those that attach probes where run as root
	@scripts/test.sh

test-all: ## everything that can be checked here: also linters, the race detector, other tools as judges (installs 1 GB)
	@scripts/test.sh all

test-go: ## the Go tests of PKG alone
	@. scripts/env.sh && use_go && go test $(PKG)

bench: ## what watching costs on this machine, as one table (asks for root)
	@scripts/bench.sh

bench-cost: ## what each source adds to programs that switch threads, launch, allocate: a table for docs/examples/cost.md (root, 6 minutes; COST=PATTERN for some rows)
	@scripts/bench.sh cost

bench-paired: ## benchmarks of commits BEFORE and AFTER (HEAD) in turns: CPU time of an operation, with intervals (WALL=1: on an idle machine, quicker)
	@scripts/bench.sh paired -before "$(BEFORE)" -after "$(or $(AFTER),HEAD)" -bench "$(or $(BENCH),.)" $(if $(WALL),-wall)

bench-go: ## the Go benchmarks of PKG that match BENCH
	@scripts/bench.sh go

bench-recordings: ## recordings written and read, bytes an event, exports of a million events, imports (a minute)
	@scripts/bench.sh recordings

bench-diagnosis: ## programs with planted causes against what is found in them: tables in docs/examples/simulator.md (root, 15 minutes)
	@scripts/bench-diagnosis.sh

bench-whatif: ## programs and their fixed twins: predicted against measured speed-ups, tables in docs/examples/simulator.md (root, 53 minutes)
	@scripts/bench-whatif.sh

fuzz: ## each fuzz test for FUZZTIME (default 10s), guided and in a flood; prints how often each ran
	@scripts/fuzz.sh

test-cycles: build cudasim ## 1,000 attachments of the daemon to one process and 200 kills of it, on the simulated GPU (root; CYCLES, KILLS; up to 20 minutes)
	@scripts/test-cycles.sh

test-starved: build cudasim ## attachments to programs that hardly get a CPU, on the simulated GPU (root; SECONDS_LIMIT=2400 ATTACHMENTS=5000 for 5,000)
	@scripts/test-starved.sh

test-gpu: build ## the same against a real GPU with PyTorch and transformers (root)
	@scripts/test-gpu.sh

test-kernels: ## the tests on Linux 5.15, 6.1 and 6.12, x86-64 and arm64, in virtual machines (QEMU; hours where it must emulate; KERNELS, PKG)
	@scripts/test-kernels.sh

test-torch: ## PyTorch from PyPI on the CPU under the daemon, transformers serve and llama-server (root; downloads 3 GB)
	@scripts/test-torch.sh

test-judges: ## HolisticTraceAnalysis, Perfetto's schema, DuckDB, pyarrow, pandas, polars, ClickHouse, Spark and Nsight Systems as judges (downloads 1 GB)
	@scripts/test-judges.sh

lint: ## gofumpt, go vet, golangci-lint, shellcheck
	@scripts/install-deps.sh test
	@scripts/lint.sh

fmt: ## formats the Go code
	@scripts/tools.sh gofumpt
	@bin/tools/gofumpt -w .

count: ## how the code is written: lines, packages, statements a line, exported names that nobody else uses, words in docs
	@. scripts/env.sh && use_go && go run ./scripts/housecount

generate: ## BPF objects with their Go side, and the agent, with clang 19
	@scripts/install-deps.sh generate
	@scripts/generate.sh

check-generate: ## whether the committed BPF objects and agents are what the source makes
	@scripts/install-deps.sh generate
	@scripts/generate.sh --check

web: ## the page of HTML reports, out of web/src (node)
	@scripts/web.sh

check-web: ## whether the committed page is what web/src makes
	@scripts/web.sh --check

test-browser: ## HTML reports in a real Chromium (node, chromium)
	@cd test/browser && npm ci --no-audit --no-fund && . ../../scripts/env.sh && use_go && INFERSCOPE_BROWSER=all go test -v -count=1 .

cudasim: ## the simulated CUDA and the victim programs, into build/
	@scripts/install-deps.sh demo
	@scripts/cudasim.sh

clean: ## removes what was built here
	rm -rf bin build dist
