# The only entry for people and CI. "make help" lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

ARCH := $(shell go env GOARCH)
OTHER := $(filter-out $(ARCH),amd64 arm64)
VERSION ?= $(or $(shell git describe --tags --match 'v*' --dirty 2>/dev/null),v0.0.0-dev$(shell git describe --always --exclude '*' --dirty 2>/dev/null | sed 's/^/.g/'))
REVISION := $(shell git rev-parse HEAD 2>/dev/null | grep -E '^[0-9a-f]{40}$$')
EPOCH := $(or $(shell git log -1 --format=%ct 2>/dev/null),0)

# What a user may set.
NODES ?= 1
EMULATE ?=
FUZZTIME ?= 10s
PUSH ?=
OUT ?= dist/machine.txtar
PROCS ?= 2
ALL ?=
RUN ?= 01-one-gpu

CACHE := $(CURDIR)/.cache
TOOLS := $(CACHE)/tools
CLUSTER := $(CACHE)/bin/cluster
VM := $(CACHE)/bin/vm
LINT := $(TOOLS)/golangci-lint
BIN := dist/linux_$(ARCH)
STATIC := $(addprefix ./,$(filter-out cmd/fettle-nvml,$(patsubst %/,%,$(dir $(wildcard cmd/*/main.go))))) ./test/conformance/fettle-conformance
# The modules that are linted and tested; those below tools/ have no code.
MODULES := . test/cluster

# -trimpath: what is compiled is the same in every checkout, and for programs and tests, so that Go's build cache has it once.
# -buildvcs=false: the version is stamped, and a checkout that belongs to another user would not build.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -buildvcs=false)
# Without cgo, for the same reason: what ships has none but fettle-nvml, and the race detector needs it.
export CGO_ENABLED := 0
# NVIDIA's header marks functions as deprecated that its binding has to call.
export CGO_CFLAGS := -Wno-deprecated-declarations
GOBUILD = go build -ldflags "-s -w -X main.version=$(VERSION)"

# For tests and the demo: where the binaries, the tools and the images are, and which version they have.
export FETTLE_CACHE := $(CACHE)
export FETTLE_IMAGES := $(CURDIR)/dist/images
export FETTLE_VERSION := $(VERSION)
export EMULATE NODES PODS
export PATH := $(CURDIR)/$(BIN):$(CACHE)/bin:$(TOOLS):$(PATH)

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

##@ Build

.PHONY: build
build: build-$(ARCH) ## Build all binaries for this machine into dist/

# One program with three names: the other two are for kubectl.
PREFIX ?= /usr/local
DATA = $(DESTDIR)$(PREFIX)/share

.PHONY: install-cli
install-cli: ## Build the command line alone and install it below PREFIX (/usr/local), also as kubectl fettle
	@mkdir -p $(BIN)
	$(GOBUILD) -o $(BIN)/ ./cmd/fettle
	install -D -m 755 $(BIN)/fettle $(DESTDIR)$(PREFIX)/bin/fettle
	ln -sf fettle $(DESTDIR)$(PREFIX)/bin/kubectl-fettle
	ln -sf fettle $(DESTDIR)$(PREFIX)/bin/kubectl_complete-fettle
	@mkdir -p $(DATA)/bash-completion/completions $(DATA)/fish/vendor_completions.d $(DATA)/zsh/site-functions
	$(BIN)/fettle completion bash > $(DATA)/bash-completion/completions/fettle
	$(BIN)/fettle completion fish > $(DATA)/fish/vendor_completions.d/fettle.fish
	$(BIN)/fettle completion zsh > $(DATA)/zsh/site-functions/_fettle

.PHONY: build-cross
build-cross: build-$(ARCH) build-$(OTHER) ## Build all binaries for amd64 and arm64

# All binaries are static but fettle-nvml, which opens NVIDIA's C library at run time.
.PHONY: build-amd64 build-arm64
build-amd64 build-arm64: build-%:
	@mkdir -p dist/linux_$*
	GOOS=linux GOARCH=$* $(GOBUILD) -o dist/linux_$*/ $(STATIC)
	@$(MAKE) nvml-$*

# The C compiler for an architecture, by the name of its Debian package.
GCC_amd64 := gcc-x86-64-linux-gnu
GCC_arm64 := gcc-aarch64-linux-gnu
LIBC_amd64 := libc6-dev-amd64-cross
LIBC_arm64 := libc6-dev-arm64-cross
CC_amd64 := x86_64-linux-gnu-gcc
CC_arm64 := aarch64-linux-gnu-gcc

.PHONY: nvml-$(ARCH)
nvml-$(ARCH):
	@command -v gcc >/dev/null || tools/debian gcc libc6-dev
	CGO_ENABLED=1 GOOS=linux $(GOBUILD) -o $(BIN)/ ./cmd/fettle-nvml

.PHONY: nvml-$(OTHER)
nvml-$(OTHER):
	@if command -v $(CC_$(OTHER)) >/dev/null || tools/debian $(GCC_$(OTHER)) $(LIBC_$(OTHER)); then \
		set -x; \
		CC=$(CC_$(OTHER)) CGO_ENABLED=1 GOOS=linux GOARCH=$(OTHER) $(GOBUILD) -o dist/linux_$(OTHER)/ ./cmd/fettle-nvml; \
	else \
		echo "fettle-nvml for $(OTHER) is not built: there is no C compiler for it here"; \
		[ "$${CI:-}" != true ]; \
	fi

IMAGES = go run ./deployments/images -bin dist -version $(VERSION) -revision "$(REVISION)" -epoch $(EPOCH) \
	-out dist/images $(if $(PUSH),-push $(PUSH))

.PHONY: image
image: build ## Assemble the images into dist/images; PUSH=registry.example/team also pushes them
	$(IMAGES) -arch $(ARCH)

.PHONY: image-cross
image-cross: build-cross ## Assemble the images for amd64 and arm64
	$(IMAGES) -arch $(ARCH),$(OTHER)

.PHONY: generate
generate: $(TOOLS)/controller-gen ## Write the generated code and the CRDs anew
	$< object crd output:crd:dir=deployments/crds paths=./api/...

.PHONY: fmt
fmt: $(LINT) ## Format the Go code
	for module in $(MODULES); do (cd $$module && $(LINT) fmt); done

.PHONY: version
version: ## Print the version, which is also the images' tag
	@echo $(VERSION)

.PHONY: clean
clean: ## Remove what was built; the tools and the cluster's binaries in .cache stay
	rm -rf dist

##@ Check

# The parts of verify and of test. Each is made by itself, and what took longest is listed at the end. Where a spec of test-api, test-demo or
# test-e2e failed, tools/stages makes the target once more with AGAIN=PATTERN, and PACKAGE for a Go test, which select that spec alone.
VERIFY := lint hygiene helm-lint build-cross
TEST := test-unit test-crash test-api test-alone test-vm test-demo test-e2e
# What test-all makes besides, by hand and before an issue is called resolved.
TEST_LATER := model mutants chaos scale test-vm-cluster fuzz-short
STAGES = go run ./tools/stages -report dist/$@-run.json $(MAKE)

.PHONY: ci
ci: ## Do all that continuous integration does: verify and test
	@$(STAGES) $(VERIFY) $(TEST)

.PHONY: verify
verify: ## Check format, lint, hygiene, generated files, chart, both architectures
	@$(STAGES) $(VERIFY)

.PHONY: lint
lint: $(LINT) ## Run go vet, the formatters' diff and the linters
	@command -v gcc >/dev/null || tools/debian gcc libc6-dev
	for module in $(MODULES); do \
		(cd $$module && go vet ./... && $(LINT) fmt --diff && $(LINT) run --config $(CURDIR)/.golangci.yml); \
	done
	CGO_ENABLED=1 go vet $(CGO_PACKAGES)
	CGO_ENABLED=1 $(LINT) run $(CGO_PACKAGES)

# Generated files are compared with ones made in a temporary directory, so a dirty working tree is no obstacle.
.PHONY: hygiene
hygiene: $(TOOLS)/controller-gen ## Run the tests of the repository itself, go mod tidy included
	FETTLE_VERIFY=1 go test -count=1 -timeout 10m ./internal/hygiene

.PHONY: helm-lint
helm-lint: $(TOOLS)/helm ## Lint the chart
	$< lint --quiet --strict deployments/helm/fettle

.PHONY: test
test: ## Run the first tier: unit, crashes, then real API server, real kernel, then real nodes: every feature once, in 30 minutes
	@$(STAGES) $(TEST)

# ALL=1 has a target run its second tier too: docs/design/testing.md says what belongs to it.
.PHONY: test-all
test-all: ## Run both tiers: storms, upgrades between versions, chaos in full, a cluster in the virtual machine, fuzzing; hours
	@ALL=1 $(STAGES) $(TEST) $(TEST_LATER)

# packages-with,PATTERN,FILES,DIRECTORIES: the packages of this module that have a file with a line of the pattern.
packages-with = $(shell grep -rlE '$(1)' --include='$(2)' --exclude-dir=cluster $(3) | xargs -n1 dirname | sort -u | sed 's|^|./|')

# The packages that have files, or tests, with cgo: NVIDIA's library, or its simulator, is linked into them.
CGO_PACKAGES = $(call packages-with,^//go:build cgo,*.go,cmd kubeletplugin pkg test)

# Tests against a real API server are called TestAPI or TestOlderAPI, wherever they are.
API_TESTS := ^Test(Older)?API$$
API_FUNCTIONS := ^func Test(Older)?API\(

# Tests that kill processes, cut the power and break the disk at every operation. They print how many.
CRASH_NAMES := CrashPoints|PowerLoss|EverySyncMatters|DiskFaults|DamageHurtsOneClaim|Killed[A-Za-z]*
CRASH_TESTS := ^Test($(CRASH_NAMES))$$
CRASH_FUNCTIONS := ^func Test($(CRASH_NAMES))\(

# The race detector, which makes tests three to ten times slower, runs on the programs, and elsewhere on packages that start goroutines,
# by themselves, by tests or by a library, and on those with cgo. It has every program wait a second at its end for races that come late,
# and the scripts run hundreds of programs.
GOROUTINES := (^|[^a-z/])go (func|[a-z][A-Za-z.]*\()|\.Go\(|AfterFunc\(|httptest\.|http\.Serve|[iI]nformer|errgroup
CONCURRENT = $$(CGO_ENABLED=1 go list ./cmd/... ./controller/... ./kubeletplugin/... $(CGO_PACKAGES) \
	$(call packages-with,$(GOROUTINES),*.go,api demo deployments pkg test tools) | grep -v '/test/e2e$$' | sort -u)

# Tests of so much data that they would take minutes with the race detector. They run without it: other tests of their packages start the
# same goroutines, and run with it.
HUGE_TESTS := ^TestHuge
HUGE_FUNCTIONS := ^func TestHuge

# The limit of a package. The slowest took 470 s, with the race detector beside two clusters.
UNIT_LIMIT := 20m

# The repository's own tests are run by verify, and go vet by lint, so that what is compiled for the race detector is not vetted again.
.PHONY: test-unit
test-unit: $(TOOLS)/helm $(TOOLS)/controller-gen ## Run the unit tests, with the race detector where goroutines run
	@command -v gcc >/dev/null || tools/debian gcc libc6-dev
	@command -v prometheus promtool >/dev/null || tools/debian prometheus || [ "$${CI:-}" != true ]
	go test $(GOTEST_JSON) -timeout $(UNIT_LIMIT) -skip '$(API_TESTS)|$(CRASH_TESTS)' \
		$$(go list ./... | grep -vxF "$(CONCURRENT)" | grep -vE '/test/e2e$$|/internal/hygiene$$')
	CGO_ENABLED=1 GORACE=atexit_sleep_ms=100 go test $(GOTEST_JSON) -timeout $(UNIT_LIMIT) -vet=off -race -skip '$(API_TESTS)|$(CRASH_TESTS)|$(HUGE_TESTS)' $(CONCURRENT)
	go test $(GOTEST_JSON) -timeout $(UNIT_LIMIT) -run '$(HUGE_TESTS)' \
		$(call packages-with,$(HUGE_FUNCTIONS),*_test.go,api cmd controller demo deployments kubeletplugin pkg test tools)
	cd test/cluster && go test $(GOTEST_JSON) -timeout $(UNIT_LIMIT) ./internal/...

CRASH_PACKAGES = $(call packages-with,$(CRASH_FUNCTIONS),*_test.go,controller kubeletplugin pkg)
CRASH = go test -count=1 -v -vet=off -timeout 20m -run '$(CRASH_TESTS)'
.PHONY: test-crash
test-crash: ## Kill the plugin and the controller, lose power and fail the disk at every operation of their lives
	@command -v gcc >/dev/null || tools/debian gcc libc6-dev
	$(CRASH) $(filter-out $(CGO_PACKAGES),$(CRASH_PACKAGES)) | grep -vE '^(=== |    ---)'
	CGO_ENABLED=1 $(CRASH) $(filter $(CGO_PACKAGES),$(CRASH_PACKAGES)) | grep -vE '^(=== |    ---)'

# The API tests mostly wait for other programs, so two packages run at a time, those first that take longest. The bench and the chaos test
# need the machine to themselves, and are never repeated: a failure that comes once in many kills is what the chaos test looks for.
API_FIRST := ./test/api/scheduler ./controller ./controller/stacks
API_ALONE := ./test/bench ./test/chaos
API_PACKAGES = $(API_FIRST) $(filter-out $(API_ALONE),$(call packages-with,$(API_FUNCTIONS),*_test.go,api cmd controller kubeletplugin pkg test))
# As an older Kubernetes, the first tier plays the scenarios in which the scheduler does something else.
SHORT = $(if $(ALL),,-short)
.PHONY: test-api
test-api: cluster-build $(TOOLS)/helm $(TOOLS)/dra-example-kubeletplugin ## Run the tests against a real API server
	@{ command -v chromium && command -v fish && command -v zsh && [ -e /usr/share/bash-completion/bash_completion ]; } >/dev/null || \
		tools/debian bash-completion chromium fish zsh || [ "$${CI:-}" != true ]
	go test $(GOTEST_JSON) -count=1 -vet=off -p 2 -timeout 20m $(SHORT) -run '$(or $(AGAIN),$(API_TESTS))' $(or $(PACKAGE),$(API_PACKAGES))

.PHONY: test-alone
test-alone: cluster-build ## Run the smallest bench and a short round of chaos against a real API server, alone on the machine
	go test $(GOTEST_JSON) -count=1 -vet=off -p 1 -timeout 20m -run '$(API_TESTS)' $(API_ALONE)

.PHONY: model
model: ## Have 2,000,000 random things happen to claims on a model of a node, which test-unit does with 1,600
	MODEL_STEPS=2000000 go test -count=1 -v -timeout 90m -run '^TestModel$$' ./kubeletplugin/prepare

.PHONY: mutants
mutants: ## Take mends out of the product, one at a time, and see the test of its kind fail: KIND=owner for one kind
	FETTLE_MUTANTS=$(KIND) go test -count=1 -v -timeout 60m -run '^TestMutants$$' ./test/mutants

.PHONY: chaos
chaos: cluster-build ## Do to the plugin whatever a node can, a standard round of 5000 claims, as test-all does; test-alone has a short one
	go test -count=1 -v -timeout 30m -run '^TestAPI$$' ./test/chaos -args -chaos.prepares=5000 -chaos.limit=25m

# Makes a target where nodes can run. Without root, or on a kernel that lacks something, one line says why; CI must not skip.
define on-nodes
	@if reason=$$($(CLUSTER) check 2>&1); then \
		$(MAKE) $(1); \
	else \
		echo "$@: $${reason##*$$'\n'}"; \
		[ "$${CI:-}" != true ]; \
	fi
endef

.PHONY: test-e2e
test-e2e: $(CLUSTER) ## Run the end-to-end tests on real nodes; ALL=1 those of both tiers, EMULATE=1.34 as an older Kubernetes
	$(call on-nodes,test-e2e-here)

# The labels of the specs that run. Those with the label older run last, on the same clusters, which serve the older API then. In the first
# tier they are what differs there; in the second, all but those that the API is nothing to. Who names specs by FOCUS wants them, whatever
# their tier, on the newest API, unless the name says "as Kubernetes".
ifndef LABELS
ifneq ($(EMULATE)$(findstring as Kubernetes,$(FOCUS)),)
LABELS := older
else ifneq ($(FOCUS),)
LABELS := !older
else ifneq ($(ALL),)
LABELS := !(older && node)
else
LABELS := (!older && !all) || (older && differs)
endif
endif

.PHONY: test-e2e-here
test-e2e-here: cluster-build image $(TOOLS)/helm $(TOOLS)/local-path-provisioner
	$(if $(EMULATE)$(FOCUS)$(AGAIN),,cd test/cluster && go test $(GOTEST_JSON) -count=1 -timeout 10m .)
	@command -v gcc >/dev/null || tools/debian gcc libc6-dev
	@command -v musl-gcc >/dev/null || tools/debian musl-tools
	@command -v prometheus >/dev/null || tools/debian prometheus
	@command -v crun >/dev/null && command -v podman >/dev/null || tools/debian crun podman
	go tool ginkgo --no-color --procs=$(PROCS) --timeout=110m $(if $(AGAIN)$(FOCUS),--focus='$(or $(AGAIN),$(FOCUS))') \
		--label-filter='$(LABELS)' ./test/e2e

# The oldest Kubernetes that the chart accepts.
OLDEST = 1.34

ATTACK ?= 10m

.PHONY: attack
attack: ## Have five tenants attack Fettle for ATTACK (10m), and compare how long others wait for their claims
	@ATTACK=$(ATTACK) $(MAKE) test-e2e PROCS=1 FOCUS='while tenants take all that they can'

PODS ?= 500

.PHONY: partitions
partitions: ## Have PODS (500) random pods ask for parts of eight H100 and for whole ones, as test-all does
	@$(MAKE) test-e2e PROCS=1 FOCUS='never lets two claims have the same slices'

.PHONY: test-e2e-older
test-e2e-older: ## Run the end-to-end tests that depend on the API as on Kubernetes 1.34 alone; all: make test-e2e EMULATE=1.34
	@$(MAKE) test-e2e EMULATE=$(OLDEST) LABELS='older && !node'

.PHONY: test-demo
test-demo: $(CLUSTER) ## Run every scenario of demo/, as make demo does
	$(call on-nodes,demo)

# Makes a target where a virtual machine can be booted, as on-nodes does.
define in-vm
	@if reason=$$($(VM) check 2>&1); then \
		$(MAKE) $(1); \
	else \
		echo "$@: $${reason##*$$'\n'}"; \
		[ "$${CI:-}" != true ]; \
	fi
endef

# What runs in the virtual machine is built here: the machine has neither a network nor time for a compiler.
VM_PROGRAMS := dist/vm
# Programs that the demo and the suite build for themselves come out of Go's cache there, which the targets below fill.
VM_CLUSTER = $(VM) run -cluster -memory 9000 -env PATH -env GOFLAGS -env FETTLE_CACHE -env FETTLE_IMAGES -env FETTLE_VERSION -env CI=true -env FETTLE_PATIENCE=10

.PHONY: test-vm
test-vm: vm-program ## Boot a real kernel in a virtual machine, and run the kernel tests there
	$(call in-vm,test-vm-here)

.PHONY: test-vm-here
test-vm-here: vm-build cluster-build
	$(VM) run -env FETTLE_CACHE -timeout 20m -- $(VM_PROGRAMS)/kernel.test -test.v

# A cluster in the virtual machine takes minutes to start where nothing else runs, and far longer where something does.
.PHONY: test-vm-cluster
test-vm-cluster: ## Run there what needs a cluster, as test-all does: scenarios 01, 15 and 16 of the demo, and the specs of isolation
	@$(MAKE) test-vm-demo RUN='01|15|16' NODES=2
	@$(MAKE) test-vm-e2e FOCUS='Fettle gives devices to pods'

.PHONY: test-vm-demo
test-vm-demo: vm-program ## Run a scenario of the demo there, on cgroup v2: RUN=01-one-gpu, or several: RUN='15|16' NODES=2
	$(call in-vm,test-vm-demo-here)

.PHONY: test-vm-demo-here
test-vm-demo-here: vm-build vm-simulators cluster-build image $(TOOLS)/helm
	go build -ldflags "-s -w" -o $(VM_PROGRAMS)/demo ./demo
	$(VM_CLUSTER) -timeout 60m -- $(VM_PROGRAMS)/demo -parallel 1 -nodes $(NODES) -run '$(RUN)'

VM_FOCUS := gives devices to pods|lends directories|Fettle presets|warms pods with kernel caches

.PHONY: test-vm-e2e
test-vm-e2e: vm-program ## Run the end-to-end specs of isolation, presets and kernel caches there; FOCUS='regexp' for others
	$(call in-vm,test-vm-e2e-here)

.PHONY: test-vm-e2e-here
test-vm-e2e-here: vm-build vm-simulators cluster-build image $(TOOLS)/helm $(TOOLS)/local-path-provisioner
	go test -c -o $(VM_PROGRAMS)/e2e.test ./test/e2e
	@command -v gcc >/dev/null || tools/debian gcc libc6-dev
	@command -v musl-gcc >/dev/null || tools/debian musl-tools
	$(VM_CLUSTER) -timeout 120m -- sh -c 'cd test/e2e && $(CURDIR)/$(VM_PROGRAMS)/e2e.test -ginkgo.no-color -ginkgo.skip="keeps its memory" \
		-ginkgo.label-filter="!older" -ginkgo.focus="$(or $(FOCUS),$(VM_FOCUS))"'

.PHONY: vm-simulators
vm-simulators:
	go build -o /dev/null ./test/pcisim/cmd
	CGO_ENABLED=1 go build -o /dev/null ./test/nvmlsim/fettle-nvml
	go build -o /dev/null ./test/fpgasim/cmd
	go build -o /dev/null ./deployments/images

.PHONY: vm-program
vm-program:
	go build -ldflags "-s -w" -o $(VM) ./test/vm

.PHONY: vm-build
vm-build:
	@tools/debian 'qemu-system-x86>=1:8.1' busybox-static cpio kmod
	$(VM) fetch
	@mkdir -p $(VM_PROGRAMS)
	go test -c -o $(VM_PROGRAMS)/kernel.test ./test/vm/kerneltest

.PHONY: fuzz-short
fuzz-short: ## Run every fuzz target for FUZZTIME (10s)
	@grep -rlE '^func Fuzz' --include='*_test.go' api pkg cdi kubeletplugin controller cmd | sort | while read -r file; do \
		for target in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*).*/\1/p' "$$file"); do \
			echo "$$(dirname "$$file") $$target"; \
			go test -timeout 10m -run='^$$' -fuzz="^$$target$$" -fuzztime=$(FUZZTIME) "./$$(dirname "$$file")"; \
		done; \
	done

.PHONY: scale
scale: cluster-build ## Measure what NODES=300 nodes cost the API server and the controller, one JSON object a line, and want the targets met
	@go run ./test/scale -nodes $(if $(filter-out 1,$(NODES)),$(NODES),300) -look 30s -check

.PHONY: bench
bench: cluster-build ## Measure Prepare and Unprepare as shipped; one JSON object a line
	@go run ./test/bench

##@ Cluster

.PHONY: demo
demo: cluster-build image $(TOOLS)/helm ## Start a Kubernetes, install Fettle and run every scenario of demo/
	go run ./demo $(if $(AGAIN),-run '$(AGAIN)')

.PHONY: cluster-build
cluster-build: $(CLUSTER)
	$(CLUSTER) build

.PHONY: cluster-up
cluster-up: cluster-build ## Start a Kubernetes on this machine: NODES=2 EMULATE=1.34
	$(CLUSTER) up --nodes $(NODES) $(if $(EMULATE),--emulate $(EMULATE))

.PHONY: cluster-down
cluster-down: $(CLUSTER) ## Stop it and remove every trace
	$(CLUSTER) down

.PHONY: record-machine
record-machine: build ## Write this machine's devices to OUT (dist/machine.txtar) for a test
	@mkdir -p $(dir $(OUT))
	$(BIN)/fettle machine record > $(OUT)

# Tools are modules of their own, so that what they need stays out of ours. A tool is built anew when its go.mod changes.

$(TOOLS)/controller-gen: tools/generate/go.mod
$(LINT): tools/lint/go.mod
$(TOOLS)/helm: tools/helm/go.mod
$(TOOLS)/dra-example-kubeletplugin: tools/dra-example-driver/go.mod
$(TOOLS)/local-path-provisioner: tools/local-path-provisioner/go.mod
$(TOOLS)/controller-gen $(LINT) $(TOOLS)/helm $(TOOLS)/dra-example-kubeletplugin $(TOOLS)/local-path-provisioner:
	@mkdir -p $(TOOLS)
	go build -C $(dir $<) -ldflags "-s -w" -o $(TOOLS)/ tool
	@touch $@

$(CLUSTER): $(shell find test/cluster -name '*.go' -o -name 'go.*' 2>/dev/null)
	@mkdir -p $(dir $@)
	go build -C test/cluster -o $@ .
