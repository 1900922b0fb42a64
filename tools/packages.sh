#!/bin/sh
# Makes sure that the system packages the build needs are there: installs them when root on a
# Debian or Ubuntu machine, else says in one message which are missing and how to get them.
set -eu
python=${PYTHON:-python3}
missing=""
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need gcc gcc
need g++ g++
need make make
echo '#include <openssl/evp.h>' | ${CC:-cc} -E -xc - >/dev/null 2>&1 || missing="$missing libssl-dev"
if ! command -v "$python" >/dev/null 2>&1; then
    missing="$missing python3 python3-venv python3-dev"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "solo needs Python 3.11 or newer, and $python is $("$python" -V 2>&1)" >&2
    echo "  fix: make PYTHON=/path/to/a/newer/python3 ..." >&2
    exit 1
else
    "$python" -c 'import venv, ensurepip' 2>/dev/null || missing="$missing python3-venv"
    header='import os, sysconfig; print(os.path.join(sysconfig.get_path("include"), "Python.h"))'
    [ -e "$("$python" -c "$header")" ] || missing="$missing python3-dev"
fi
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
