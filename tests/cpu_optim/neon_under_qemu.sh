#!/bin/bash
# neon_under_qemu.sh SOURCE BUILD XSIMD_INCLUDE: cross-compiles the kernels for AArch64 and compares NEON with scalar,
# bit for bit, over all forms, under qemu-user.
set -eu
source=$1 build=$2 xsimd=$3
compiler=aarch64-linux-gnu-g++
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
if ! command -v $compiler >/dev/null || [ -z "$emulator" ]; then
  echo "SKIPPED: needs $compiler and qemu-user (apt-get install g++-aarch64-linux-gnu qemu-user)"
  exit 77
fi
mkdir -p "$build/include"
ln -sfn "$xsimd/xsimd" "$build/include/xsimd"
objects=()
for file in cpu_optim/kernels_scalar cpu_optim/kernels_neon cpu_optim/isa cpu_optim/tile_sweep cpu_optim/tile_update \
            cpu_optim/gradient cpu_optim/checksum tiering/hyper tiering/arithmetic/checksum tiering/check tiering/status tiering/tier \
            tiering/state_layout tests/cpu_optim/neon_check; do
  object=$build/${file//\//_}.o
  if [ ! -e "$object" ] ||
     [ -n "$(find "$source/cpu_optim" "$source/tiering" "$source/tests/cpu_optim" -newer "$object" -print -quit)" ]; then
    $compiler -std=c++20 -ffp-contract=off -O2 -Wall -Wextra "-I$source" -isystem "$build/include" \
      -c "$source/$file.cpp" -o "$object"
  fi
  objects+=("$object")
done
$compiler -static "${objects[@]}" -o "$build/neon_check"
"$emulator" "$build/neon_check"
