#!/bin/bash
# Runs torch_exactness.py with the first Python that has torch: $PENSTOCK_PYTHON, ./.venv, the system's.
set -u
here=$(cd "$(dirname "$0")" && pwd)
for python in "${PENSTOCK_PYTHON:-}" "$here/../../.venv/bin/python" python3; do
  if [ -n "$python" ] && "$python" -c 'import torch' 2>/dev/null; then
    exec "$python" "$here/torch_exactness.py" "$1"
  fi
done
echo "SKIPPED: no Python with torch; set PENSTOCK_PYTHON to one that has torch 2.13"
exit 77
