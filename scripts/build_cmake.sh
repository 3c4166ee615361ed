#!/usr/bin/env bash
# Build all shipped candidates ahead of time into one library and check that PyTorch finds every operator.
#
#   scripts/build_cmake.sh            with CUDA kernels where a CUDA compiler is found
#   scripts/build_cmake.sh --cpu      without
#
# PYTHON names the interpreter whose torch is built against; unless set it is the checkout's .venv where there
# is one, else python3.
set -euo pipefail
cd "$(dirname "$0")/.."

python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
python=${PYTHON:-$python}
build=.build/cmake
with_cuda=ON
case "${1:-}" in
  "") ;;
  --cpu) with_cuda=OFF ;;
  *)
    echo "build_cmake.sh: unknown argument '$1'; allowed is --cpu" >&2
    exit 2
    ;;
esac

# The packages' folders, through their metadata: importing torch would cost seconds.
torch_root=$("$python" -c '
import importlib.util
found = importlib.util.find_spec("torch")
print(found.submodule_search_locations[0] if found else "")')
if [ -z "$torch_root" ]; then
  echo "build_cmake.sh: $python has no torch; set PYTHON to an interpreter that has" >&2
  exit 2
fi
wheel=$(find "$torch_root/../nvidia" -maxdepth 1 -name 'cu[0-9]*' 2>/dev/null | head -n 1 || true)
wheel_include=${wheel:+$wheel/include}
runtime=$(find "$torch_root/../nvidia" -name 'libcudart.so.*' 2>/dev/null | head -n 1 || true)

generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi
cmake -S . -B "$build" "${generator[@]}" \
  -DTORCH_ROOT="$torch_root" \
  -DCUDA_WHEEL_INCLUDE="$wheel_include" \
  -DCUDA_RUNTIME="${runtime:-cudart}" \
  -DMINI_KV_WITH_CUDA="$with_cuda"
cmake --build "$build" --parallel

"$python" -W "ignore:Failed to initialize NumPy" - "$build/libmini_kv_candidates.so" candidates/*/*/candidate.yaml <<'PYTHON'
import sys

import torch
import yaml

library, *manifests = sys.argv[1:]
torch.ops.load_library(library)
for path in manifests:
    with open(path, encoding="utf-8") as stream:
        manifest = yaml.safe_load(stream)
    namespace, name = manifest["dispatcher"].split("::")
    schema = str(getattr(getattr(torch.ops, namespace), name).default._schema)
    if schema != f"{namespace}::{manifest['schema']}":
        sys.exit(f"{path}: the library registers '{schema}', the manifest says '{manifest['schema']}'")
    cuda = torch._C._dispatch_has_kernel_for_dispatch_key(manifest["dispatcher"], "CUDA")
    print(f"{schema}  [{'cpu, cuda' if cuda else 'cpu'}]")
PYTHON
