#!/usr/bin/env bash
# Make .venv hold exactly what the locks say, with mini-kv installed editable. Idempotent: when nothing
# changed it only compares one stamp.
#
#   MINI_KV_PYTHON=/path/to/python3.12   the interpreter to use (3.11, 3.12 or 3.13)
#   MINI_KV_NVCC=1                       the CUDA compiler from wheels too; =0 takes it away again
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv
readonly PYTHON=$VENV/bin/python
readonly STAMP=$VENV/.mini-kv-setup
readonly FITS='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))'

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 2; }

# Two runs at once (make -j, two terminals) would tear the environment: the second one waits.
if command -v flock >/dev/null; then
    exec 9<scripts/setup.sh
    flock 9
fi

nvcc_wanted() {
    case ${MINI_KV_NVCC:-} in
        '') [ -f "$STAMP" ] && grep -qx 'nvcc' "$STAMP" ;;
        0) return 1 ;;
        *) return 0 ;;
    esac
}

locks=(requirements/lock.txt)
if nvcc_wanted; then locks+=(requirements/nvcc.txt); fi

# Once an interpreter was named it stays, until another one is named.
interpreter=${MINI_KV_PYTHON:-}
if [ -z "$interpreter" ] && [ -f "$STAMP" ]; then interpreter=$(sed -n 's/^python //p' "$STAMP"); fi

# Everything that decides what the environment holds. A moved checkout has dead paths in its scripts,
# so the folder counts too.
fingerprint() {
    sha256sum requirements/uv.txt "${locks[@]}" pyproject.toml src/mini_kv/__init__.py scripts/setup.sh
    echo "folder $PWD"
    echo "python $interpreter"
    if nvcc_wanted; then echo nvcc; fi
}

wanted=$(fingerprint)
if [ -x "$PYTHON" ] && [ -f "$STAMP" ] && [ "$(<"$STAMP")" = "$wanted" ]; then
    say "$VENV is as the locks say; nothing to do"
    exit 0
fi

find_python() {
    if [ -n "$interpreter" ]; then
        "$interpreter" -c "$FITS" 2>/dev/null \
            || die "MINI_KV_PYTHON=$interpreter does not run as Python 3.11, 3.12 or 3.13."
        echo "$interpreter"
        return
    fi
    local name
    for name in python3 python3.13 python3.12 python3.11 python; do
        # Run it: a name on PATH may be a shim for a version that is not installed.
        if command -v "$name" >/dev/null && "$name" -c "$FITS" 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    die "no Python 3.11, 3.12 or 3.13 on PATH; install one, or name it with MINI_KV_PYTHON."
}

keep_venv() {
    [ -x "$PYTHON" ] && "$PYTHON" -c "$FITS" 2>/dev/null || return 1
    if [ -f "$STAMP" ]; then
        grep -qxF "folder $PWD" "$STAMP" && grep -qxF "python $interpreter" "$STAMP"
    else
        # Left by an interrupted run, or made by hand: usable if its pip is.
        [ -z "$interpreter" ] && "$PYTHON" -m pip --version >/dev/null 2>&1
    fi
}

make_venv() {
    local python
    python=$(find_python)
    say "making $VENV with $("$python" --version) ($python)"
    if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        "$python" -m venv --clear "$VENV"
    elif "$python" -m virtualenv --version >/dev/null 2>&1; then
        "$python" -m virtualenv --quiet --clear "$VENV"
    elif command -v virtualenv >/dev/null; then
        virtualenv --quiet --clear --python "$python" "$VENV"
    else
        die "$python cannot make virtual environments (no ensurepip, no virtualenv);" \
            "install your system's venv package, on Debian and Ubuntu: apt-get install python3-venv."
    fi
}

# pip keeps its own configuration (index, certificates, constraints): it is only given hashes.
pip_install() { "$PYTHON" -m pip install --quiet --disable-pip-version-check "$@"; }

install_with_uv() {
    pip_install --require-hashes --no-deps --only-binary :all: -r requirements/uv.txt || return 1
    "$VENV/bin/uv" pip sync --quiet --python "$PYTHON" --require-hashes "${locks[@]}" || return 1
    "$VENV/bin/uv" pip install --quiet --python "$PYTHON" --no-deps --no-build-isolation --offline --editable .
}

# uv does not read pip's configuration. Where an index or a proxy is known to pip alone, pip does it.
install_with_pip() {
    say "uv could not install the lock; trying pip, which is slower"
    local arguments=() lock
    for lock in "${locks[@]}"; do arguments+=(-r "$lock"); done
    pip_install --require-hashes --no-deps "${arguments[@]}" || return 1
    pip_install --no-deps --no-build-isolation --no-index --editable .
}

keep_venv || make_venv
rm -f "$STAMP"
say "installing the locked packages (the first time this downloads some gigabytes: torch and CUDA)"
install_with_uv || install_with_pip \
    || die "the locked packages could not be installed (the reason stands above)."
"$PYTHON" -c 'import mini_kv' || die "mini-kv does not import from $PYTHON."
# Installers leave bytecode out, and caged workers may not write it: without this one process (-I: it writes
# what it compiles, whatever the environment says) each of them would compile torch and mini-kv anew.
"$PYTHON" -I -m compileall -q src/mini_kv \
    && "$PYTHON" -I -W ignore -c 'import mini_kv.cli.verify, mini_kv.worker.candidate, mini_kv.worker.oracle' \
    || say "note: the bytecode of what workers import could not be made; 'mini-kv doctor' says more."
printf '%s\n' "$wanted" >"$STAMP"

if ! command -v "${CXX:-g++}" >/dev/null; then
    say "note: no C++ compiler (${CXX:-g++}); candidates cannot be built until one is installed."
fi
say "ready: $VENV/bin/mini-kv"
