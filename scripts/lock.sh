#!/usr/bin/env bash
# Resolve requirements/*.in and pyproject.toml again and write the hashed locks; needs the network.
# The locks name no index, so that each machine takes the packages from the index it is set up for.
# Without arguments what is locked stays where it can; pass --upgrade to take the newest releases.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export UV_CUSTOM_COMPILE_COMMAND="make lock"
compile() {
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-annotate "$@"
}

compile requirements/uv.in --output-file requirements/uv.txt "${@}"
compile pyproject.toml requirements/lock.in --extra dev --output-file requirements/lock.txt "${@}"
compile requirements/nvcc.in --constraint requirements/lock.txt --output-file requirements/nvcc.txt "${@}"

if grep -nE '://|^--(extra-)?index|^--find-links' requirements/*.txt; then
    echo "lock: a lock names an index or an address (above); it must not." >&2
    exit 1
fi
echo "lock: requirements/uv.txt, lock.txt and nvcc.txt are up to date."
