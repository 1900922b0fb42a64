# make help says what each target does. Nothing here needs root, but system packages that are
# missing are installed when it is root and named in one message when it is not.

PYTHON  ?= python3
VENV    := .venv
PY      := $(VENV)/bin/python
TORCH   ?= 2.13.0
FLAVOR  ?= release
BUILD   ?= build/$(FLAVOR)
CC      ?= gcc
CLANG   ?= $(or $(shell for name in clang clang-19 clang-16 clang-15 clang-14; do command -v $$name && break; done),clang)
JOBS    ?= $(shell nproc)
SECONDS_FUZZ ?= 10
SEEDS   ?= 3000

WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wswitch-enum -Wvla
WERROR  ?= $(if $(CI),-Werror,)
CFLAGS_release := -O2 -g
CFLAGS_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
CFLAGS_tsan := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
CFLAGS_fuzz := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
# No fused multiply-add: the same bits on every instruction set.
CFLAGS  := -std=c11 -D_GNU_SOURCE -fPIC -fvisibility=hidden -ffp-contract=off -pthread \
           $(WARN) $(WERROR) $(CFLAGS_$(FLAVOR)) -Icsrc -Icsrc/include
ifeq ($(shell $(CC) -dumpmachine 2>/dev/null | cut -d- -f1),aarch64)
CFLAGS  += -march=armv8-a+crc # optional in ARMv8.0, in every server and board since
endif
LDLIBS  := -lcrypto -lm -pthread -ldl

ROOMS   := base kernels codec wire protocol os comm ckpt node
LIB_SRC := $(foreach room,$(ROOMS),$(wildcard csrc/$(room)/*.c))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
LIB     := $(BUILD)/libsolo.a
UNIT    := $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(wildcard tests/unit/test_*.c))
SIM_SRC := $(wildcard tests/sim/*.c)
FUZZ    := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
BENCH   := $(patsubst benchmarks/%.c,$(BUILD)/%,$(wildcard benchmarks/*.c))
SOLORUN := $(BUILD)/solorun
SHARE   := $(addprefix $(BUILD)/share/,man/man1/solorun.1 zsh/site-functions/_solorun \
             bash-completion/completions/solorun fish/vendor_completions.d/solorun.fish)
MEMBER  := $(BUILD)/member

.PHONY: help setup demo test gpu torch214 bench sim fuzz asan tsan tsan-adapter lint fmt lib launcher ctests clean packages venv
.DELETE_ON_ERROR:

help:
	@echo "make demo    set everything up and run the main job: 2 nodes, a third joins, two go (3 min after the set-up)"
	@echo "make setup   the set-up alone: $(VENV)/bin/python and $(VENV)/bin/solorun"
	@echo "make test    set everything up and run all tests (C and Python, one pytest run)"
	@echo "make gpu     what needs a GPU, on a machine with one; make torch214: the backend with torch 2.14"
	@echo "make bench   every benchmark, each as ratios of one run (some parts need root)"
	@echo "make sim     the protocol under $(SEEDS) seeds of the deterministic simulator"
	@echo "make fuzz    every parser under libFuzzer, $(SECONDS_FUZZ) s each (SECONDS_FUZZ=...)"
	@echo "make asan    the C tests under AddressSanitizer and UBSan; make tsan: ThreadSanitizer"
	@echo "make tsan-adapter   the c10d adapter with several threads, under ThreadSanitizer"
	@echo "make lint    clang-format, clang-tidy, ruff, mypy --strict, layers, sizes; make fmt mends layout"
	@echo "make clean   removes build/; the set-up in $(VENV) stays"

# ---- the C library, its tests, the launcher -------------------------------------------------
lib: $(LIB)
launcher: $(SOLORUN) $(SHARE)
ctests: $(UNIT) $(if $(SIM_SRC),$(BUILD)/sim) $(MEMBER)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -MMD -MP -c $< -o $@

$(LIB): $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/tests/%: $(BUILD)/tests/unit/%.o $(BUILD)/tests/unit/check.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $^ $(LDLIBS) -o $@

$(BUILD)/sim: $(SIM_SRC:%.c=$(BUILD)/%.o) $(LIB)
	$(CC) $(CFLAGS) $^ $(LDLIBS) -o $@

# The launcher's names and the library's own never meet: of the launcher only main is seen.
$(BUILD)/solorun.o: $(patsubst %.c,$(BUILD)/%.o,$(wildcard launcher/*.c))
	$(LD) -r $^ -o $@
	objcopy --keep-global-symbol=main $@

$(SOLORUN): $(BUILD)/solorun.o $(LIB)
	$(CC) $(CFLAGS) $^ $(LDLIBS) -o $@

# What shells and man find beside an installed solorun; it writes them itself.
$(BUILD)/share/man/man1/solorun.1: WORDS = manual
$(BUILD)/share/zsh/site-functions/_solorun: WORDS = completion zsh
$(BUILD)/share/bash-completion/completions/solorun: WORDS = completion bash
$(BUILD)/share/fish/vendor_completions.d/solorun.fish: WORDS = completion fish
$(SHARE): $(SOLORUN)
	@mkdir -p $(@D)
	$(SOLORUN) $(WORDS) > $@

$(MEMBER): $(BUILD)/tests/e2e/member.o $(LIB)
	$(CC) $(CFLAGS) $^ $(LDLIBS) -o $@

$(BUILD)/%: $(BUILD)/benchmarks/%.o $(LIB)
	$(CC) $(CFLAGS) $^ $(LDLIBS) -o $@

$(BUILD)/fuzz_%: tests/fuzz/fuzz_%.c $(LIB)
	$(CLANG) $(CFLAGS) -fsanitize=fuzzer $^ $(LDLIBS) -o $@

.SECONDARY:
-include $(shell find $(BUILD) -type f -name '*.d' 2>/dev/null)

# ---- set-up -----------------------------------------------------------------------------------
packages:
	@PYTHON=$(PYTHON) tools/packages.sh

$(VENV)/.packages: requirements-dev.txt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -qq --disable-pip-version-check -U pip setuptools wheel
	@echo "torch $(TORCH) and the tools for tests and pictures: downloads, minutes the first time"
	$(PY) -m pip install -qq --disable-pip-version-check torch==$(TORCH)
	$(PY) -m pip install -qq --disable-pip-version-check -r requirements-dev.txt
	@touch $@

INSTALLED := $(shell find csrc launcher solo -name '*.[chpt]*' -not -name '*.so' -not -name '*.pyc' 2>/dev/null)
# compat, a path: with setuptools' finder a script beside the clone would take the clone's folder for the package
$(VENV)/.installed: $(VENV)/.packages setup.py pyproject.toml $(INSTALLED)
	@echo "compiling solo: a minute or two"
	@$(PY) -m pip install -qq --disable-pip-version-check --no-build-isolation --no-deps -e . \
	    --config-settings editable_mode=compat 2>&1 | grep -iE '^ *error|fatal' ; test $$? = 1
	@install -m 755 build/release/solorun $(VENV)/bin/solorun # an editable install leaves it out
	@cp -r build/release/share $(VENV)/
	@touch $@

venv: $(VENV)/.packages
setup: packages $(VENV)/.installed

demo: setup
	$(PY) -m examples.demo

# ---- checks -----------------------------------------------------------------------------------
test: setup
	$(MAKE) -s -j$(JOBS) ctests launcher WERROR=-Werror
	$(PY) -m pytest tests

gpu: setup
	$(PY) -m pytest tests/gpu

torch214: setup
	SOLO_TORCH214=$${SOLO_TORCH214:-create} $(PY) -m pytest tests/py/test_backend_torch214.py

sim: $(BUILD)/sim
	$(BUILD)/sim --seeds $(SEEDS)

fuzz:
	@$(MAKE) -s -j$(JOBS) FLAVOR=fuzz CC=$(CLANG) $(FUZZ:%=build/fuzz/%)
	@for name in $(FUZZ); do \
	    mkdir -p build/fuzz/corpus/$$name; \
	    build/fuzz/$$name -max_total_time=$(SECONDS_FUZZ) -print_final_stats=0 -verbosity=0 \
	        build/fuzz/corpus/$$name $$(test -d tests/fuzz/corpus/$$name && echo tests/fuzz/corpus/$$name) \
	        || exit 1; echo "$$name: clean for $(SECONDS_FUZZ) s"; done

asan tsan:
	@$(MAKE) -s -j$(JOBS) FLAVOR=$@ ctests
	@for test in build/$@/tests/test_*; do \
	    case $$test in *.d|*.o) continue;; esac; $$test >/dev/null 2>build/$@/log || \
	        { echo "$$test:"; cat build/$@/log; exit 1; }; done
	@if [ -x build/$@/sim ]; then build/$@/sim --seeds 100; fi
	@echo "$@: clean"

# The c10d adapter inside of a torch that is not instrumented.
tsan-adapter: venv
	SOLO_FLAVOR=tsan $(PY) setup.py -q build --build-lib build/tsan/py --build-temp build/tsan/tmp
	$(PY) tests/tsan/adapter.py

lint: setup
	$(PY) tools/lint.py

fmt:
	$(PY) tools/lint.py --fix

bench: setup
	$(PY) -m benchmarks

clean:
	rm -rf build
