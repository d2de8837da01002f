#!/usr/bin/env bash
# install_test.sh BUILD VERSION: what `cmake --install` leaves can be used by somebody who has only that: through
# find_package and through pkg-config, in C, with nothing exported but C functions of ours.
set -euo pipefail

build=$(realpath "$1")
version=$2
here=$(cd "$(dirname "$0")" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
prefix=$place/usr

# claim SENTENCE COMMAND...
claim() {
  local sentence=$1
  shift
  if "$@" > "$place/log" 2>&1; then
    echo "ok: $sentence"
  else
    echo "FAILED: $sentence"
    cat "$place/log"
    exit 1
  fi
}

only_our_c_functions() {
  ! nm --dynamic --defined-only --format=posix "$1" | awk '{ print $1 }' | grep -v '^penstock_[a-z0-9_]*$'
}

claim "it installs" cmake --install "$build" --prefix "$prefix"
library=$(find "$prefix" -name 'libpenstock.so')
libraries=$(dirname "$library")
claim "the library has a versioned name" bash -c "readelf -d '$library' | grep -q 'SONAME.*libpenstock.so.${version%%.*}\]'"
claim "it exports C functions of ours alone" only_our_c_functions "$library"
for header in "$prefix"/include/penstock/*.h; do
  echo "#include \"$header\"" > "$place/header.c"
  claim "$(basename "$header") is C" cc -std=c11 -Wall -Wextra -Werror -fsyntax-only "$place/header.c"
done

claim "find_package finds it" cmake -S "$here/consumer" -B "$place/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
claim "a program links" cmake --build "$place/consumer"
claim "and runs" test "$("$place/consumer/consumer")" = "$version"

if command -v pkg-config > /dev/null; then
  export PKG_CONFIG_PATH=$libraries/pkgconfig
  # shellcheck disable=SC2046
  claim "pkg-config finds it" cc "$here/consumer/consumer.c" -o "$place/other" $(pkg-config --cflags --libs penstock)
  claim "and that program runs" test "$(LD_LIBRARY_PATH=$libraries "$place/other")" = "$version"
else
  echo "pkg-config is not installed: not tried"
fi

claim "the command runs from there" test "$("$prefix/bin/penstock" --version)" = "$version"
claim "each verb has a man page" test -s "$prefix/share/man/man1/penstock-nvme-probe.1"
claim "bash completes it" bash -n "$prefix/share/bash-completion/completions/penstock"
if command -v zsh > /dev/null; then
  claim "zsh completes it" zsh -n "$prefix/share/zsh/site-functions/_penstock"
fi
if command -v fish > /dev/null; then
  claim "fish completes it" fish --no-execute "$prefix/share/fish/vendor_completions.d/penstock.fish"
fi
