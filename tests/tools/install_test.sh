#!/usr/bin/env bash
# install_test.sh BUILD VERSION: what `cmake --install` leaves can be used by somebody who has only that: through
# find_package and through pkg-config, in C and C++, with nothing exported but C functions of ours. The examples train,
# and go on where they were killed.
set -euo pipefail

build=$(realpath "$1")
version=$2
here=$(cd "$(dirname "$0")" && pwd)
examples=$(cd "$here/../../tools/examples" && pwd)
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

# goes_on_after_a_kill STEPS PROGRAM: killed twice, its last step has the loss of a run that nobody killed.
goes_on_after_a_kill() {
  local steps=$1 program=$2 step
  rm -rf "$place/whole" "$place/killed"
  "$program" "$place/whole" "$steps" > "$place/whole.log"
  for step in $((steps / 3)) $((steps * 2 / 3)); do
    "$program" "$place/killed" "$steps" > "$place/killed.log" &
    local running=$!
    until grep -q "^step $step " "$place/killed.log"; do
      kill -0 "$running" 2> /dev/null || grep -q "^step $step " "$place/killed.log" || return 1
      sleep 0.01
    done
    kill -9 "$running" || true
    wait "$running" 2> /dev/null || true
  done
  "$program" "$place/killed" "$steps" > "$place/killed.log"
  test "$(tail -n 1 "$place/whole.log")" = "$(tail -n 1 "$place/killed.log")" &&
    test "$(wc -l < "$place/killed.log")" -lt "$steps"
}

# ranks_as_one STEPS PROGRAM: two processes, of which one is killed on the way and both are started again, print the
# numbers of one that has all of the model.
ranks_as_one() {
  local steps=$1 program=$2 rank
  rm -rf "$place/one" "$place/two"
  "$program" "$place/one" "$steps" | sort -u > "$place/one.log"
  export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000))
  RANK=1 "$program" "$place/two" 100000 > "$place/killed1.log" 2> "$place/killed1.err" &
  local killed=$!
  RANK=0 "$program" "$place/two" 100000 > "$place/killed0.log" 2> "$place/killed0.err" &
  local survivor=$!
  until grep -q "^step 2 " "$place/killed1.log"; do
    kill -0 "$killed" || return 1
    sleep 0.01
  done
  kill -9 "$killed" || true
  wait "$killed" 2> /dev/null || true
  if wait "$survivor"; then return 1; fi
  grep "rank 1 died" "$place/killed0.err" || return 1
  RANK=1 "$program" "$place/two" "$steps" > "$place/two1.log" &
  RANK=0 "$program" "$place/two" "$steps" > "$place/two0.log"
  wait $!
  unset WORLD_SIZE MASTER_ADDR MASTER_PORT
  test -s "$place/two0.log" && test -s "$place/two1.log" || return 1
  for rank in 0 1; do cat "$place/killed$rank.log" "$place/two$rank.log"; done | sort -u > "$place/two.log"
  diff "$place/one.log" "$place/two.log"
}

no_torch_in() {
  ! ldd "$1" | grep -i -E 'lib(torch|c10|python)'
}

claim "it installs" cmake --install "$build" --prefix "$prefix"
library=$(find "$prefix" -name 'libpenstock.so')
libraries=$(dirname "$library")
claim "the library has a versioned name" bash -c "readelf -d '$library' | grep -q 'SONAME.*libpenstock.so.${version%%.*}\]'"
claim "it exports C functions of ours alone" only_our_c_functions "$library"
claim "it needs neither torch nor Python" no_torch_in "$library"
for header in "$prefix"/include/penstock/*.h; do
  echo "#include \"$header\"" > "$place/header.c"
  claim "$(basename "$header") is C" cc -std=c11 -Wall -Wextra -Werror -fsyntax-only "$place/header.c"
done

for header in "$prefix"/include/penstock/*.h "$prefix"/include/penstock/*.hpp; do
  echo "#include \"$header\"" > "$place/header.cpp"
  claim "$(basename "$header") is C++" c++ -std=c++20 -Wall -Wextra -Werror -fsyntax-only "$place/header.cpp"
done

claim "find_package finds it" cmake -S "$here/consumer" -B "$place/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
  -DEXAMPLES="$examples"
claim "programs link" cmake --build "$place/consumer"
claim "and run" test "$("$place/consumer/consumer")" = "$version"
claim "mlp.cpp goes on after kill -9" goes_on_after_a_kill 8 "$place/consumer/mlp"
claim "ranks.cpp computes in two processes what it does in one" ranks_as_one 60 "$place/consumer/ranks"

if command -v pkg-config > /dev/null; then
  export PKG_CONFIG_PATH=$libraries/pkgconfig
  # shellcheck disable=SC2046
  claim "pkg-config finds it" cc "$here/consumer/consumer.c" -o "$place/other" $(pkg-config --cflags --libs penstock)
  claim "and that program runs" test "$(LD_LIBRARY_PATH=$libraries "$place/other")" = "$version"
  # shellcheck disable=SC2046
  claim "embed.c builds with it" cc -std=c11 -Wall -Wextra -Werror -O2 "$examples/embed.c" -o "$place/embed" \
    $(pkg-config --cflags --libs penstock) -lm
  export LD_LIBRARY_PATH=$libraries
  claim "embed.c goes on after kill -9" goes_on_after_a_kill 600 "$place/embed"
  unset LD_LIBRARY_PATH
else
  echo "pkg-config is not installed: not tried"
fi

claim "the command runs from there" test "$("$prefix/bin/penstock" --version)" = "$version"
if [[ -e $prefix/bin/penstock-trainer ]]; then
  claim "what trains finds PyTorch" bash -c "! ldd '$prefix/bin/penstock-trainer' | grep 'not found'"
  claim "and has its text" test -s "$prefix/share/penstock/paradise-lost.txt"
fi
claim "each verb has a man page" test -s "$prefix/share/man/man1/penstock-nvme-probe.1"
claim "fine-tuning has a page" test -s "$prefix/share/man/man1/penstock-finetune.1"
claim "ranks have a page" test -s "$prefix/share/man/man1/penstock-ranks.1"
claim "its verbs in Python are there" test -s "$prefix/share/penstock/python/penstock/data/prepare.py"
claim "bash completes it" bash -n "$prefix/share/bash-completion/completions/penstock"
if command -v zsh > /dev/null; then
  claim "zsh completes it" zsh -n "$prefix/share/zsh/site-functions/_penstock"
fi
if command -v fish > /dev/null; then
  claim "fish completes it" fish --no-execute "$prefix/share/fish/vendor_completions.d/penstock.fish"
fi
