#!/bin/bash
# kernels_share_no_symbols.sh NM LIBRARY: every weak symbol of the AVX kernels names their Lanes (or is xsimd's own for
# that instruction set), so the linker can give it to nobody else.
set -u
nm=$1 library=$2
for isa in Avx2 Avx512; do
  object=kernels_${isa,,}.cpp.o
  symbols=$("$nm" -C "$library" 2>/dev/null | awk -v want="$object:" '/\.o:$/ { here = ($0 == want) } here')
  if [ -z "$symbols" ]; then
    echo "$library holds no $object"
    exit 1
  fi
  shared=$(echo "$symbols" | grep -E ' [WVu] ' | grep -vE "${isa}Lanes|DW.ref.__gxx_personality|xsimd::(avx512|fma3<xsimd::avx2>)")
  if [ -n "$shared" ]; then
    echo "$object shares with the rest of the program:"
    echo "$shared"
    exit 1
  fi
done
echo "the AVX kernels share no function"
