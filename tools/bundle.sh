# shellcheck shell=bash
# For tools/setup: makes a folder with all that the build needs except the compiler, CUDA and torch, to be carried to a
# host without network: unpacked Debian packages, and cmake and ninja from pip. There, set PATH=DIR/bin:$PATH:
# CMakeLists.txt finds the libraries in .bundle or PENSTOCK_BUNDLE.

bundle_limit_mib=40
# What the libraries need at run time, and the test library.
bundle_extra=(libgtest-dev googletest liburing2 libtbb12 libtbbmalloc2 libtbbbind-2-5 libhwloc15)

# make_bundle DIR PACKAGE...
make_bundle() {
  local into=$1 packages=("${@:2}" "${bundle_extra[@]}")
  # Ubuntu 24.04 calls the package by another name than Debian 12.
  if apt-cache show libaio1t64 &> /dev/null; then packages+=(libaio1t64); else packages+=(libaio1); fi
  if [[ -e $into && ! -e $into/.penstock-bundle ]]; then
    say "setup: make bundle: $into: exists and is not a bundle" >&2
    say "try: another folder" >&2
    exit 2
  fi
  refresh_lists
  say "apt will download about 15 MB of libraries, pip about 30 MB of cmake and ninja, into $into"
  [[ $dry_run ]] && return
  rm -rf "$into"
  mkdir -p "$into"
  into=$(realpath "$into")
  touch "$into/.penstock-bundle"
  step "fetch ${#packages[@]} packages" fetch_packages "$into" "${packages[@]}"
  step "fetch cmake and ninja" fetch_build_tools "$into"
  step "leave out what a build does not read" thin_out "$into"
  step "list what is in it" list_files "$into"
  local mib
  mib=$(du -sm --apparent-size "$into" | cut -f 1)
  say "$into takes $mib MiB"
  ((mib < bundle_limit_mib))
}

fetch_packages() {
  local into=$1 debs
  shift
  debs=$(mktemp -d)
  (cd "$debs" && apt-get download "$@") || return
  for deb in "$debs"/*.deb; do
    dpkg-deb -x "$deb" "$into" || return
  done
  rm -rf "$debs"
}

# cmake and ctest are large, so they travel packed; bin/ has a script for each that unpacks them when first used.
fetch_build_tools() {
  local into=$1 wheels tool
  wheels=$(mktemp -d)
  python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$wheels" 'cmake>=3.25,<4' ninja || return
  for wheel in "$wheels"/*.whl; do
    python3 -m zipfile -e "$wheel" "$wheels/tree"
  done
  mkdir -p "$wheels/packed/bin" "$wheels/packed/share" "$into/bin"
  for tool in cmake ctest ninja; do
    cp "$(find "$wheels/tree" -type f -name $tool \( -path '*/bin/*' -o -path '*/scripts/*' \))" "$wheels/packed/bin" ||
      return
  done
  cp -r "$wheels"/tree/cmake/data/share/cmake-* "$wheels/packed/share"
  rm -rf "$wheels"/packed/share/cmake-*/{Help,completions,editors}
  chmod +x "$wheels"/packed/bin/*
  strip --strip-unneeded "$wheels"/packed/bin/* 2> /dev/null || true
  tar -C "$wheels/packed" -czf "$into/build-tools.tar.gz" .
  for tool in cmake ctest ninja; do
    unpacking_script > "$into/bin/$tool"
    chmod +x "$into/bin/$tool"
  done
  rm -rf "$wheels"
}

# For who receives it: tools/gpu-check looks whether all of it has arrived.
list_files() { (cd "$1" && find bin usr build-tools.tar.gz ! -type d | sort > .penstock-bundle); }

unpacking_script() {
  cat << 'END'
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
if [ ! -d "$here/build-tools" ]; then
  mkdir "$here/build-tools.$$" && tar -C "$here/build-tools.$$" -xzf "$here/build-tools.tar.gz" &&
    mv "$here/build-tools.$$" "$here/build-tools" || exit 1
fi
exec "$here/build-tools/bin/$(basename "$0")" "$@"
END
}

thin_out() {
  local into=$1
  rm -rf "$into"/usr/share/{doc,man,lintian,bug}
  # A shared library beside its archive is enough; GoogleTest is linked as an archive.
  find "$into/usr/lib" -name '*.a' ! -name 'libg*' ! -name 'liburing*' -delete
}
