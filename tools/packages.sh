#!/bin/sh
# Makes sure that the system packages the build needs are there: installs them when root on a
# Debian or Ubuntu machine, else says in one message which are missing and how to get them.
set -eu
missing=""
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need gcc gcc
need g++ g++
need make make
echo '#include <openssl/evp.h>' | ${CC:-cc} -E -xc - >/dev/null 2>&1 || missing="$missing libssl-dev"
python3 -c 'import venv, ensurepip' 2>/dev/null || missing="$missing python3-venv"
# For the checks alone: formatting, linting, fuzzing, network namespaces.
optional=""
want() { command -v "$1" >/dev/null 2>&1 || optional="$optional $2"; }
want clang-14 "clang-14 libclang-rt-14-dev"
want clang-format-14 clang-format-14
want clang-tidy-14 clang-tidy-14
want ip iproute2
[ -z "$missing$optional" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing:$missing$optional"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing $optional >/dev/null
    exit 0
fi
if [ -n "$missing" ]; then
    echo "solo needs these packages to build:$missing" >&2
    echo "  fix: as root: apt-get install$missing" >&2
    exit 1
fi
echo "not installed (only checks need them):$optional" >&2
