# Shared by run, test, .ci/run and the check scripts: packages, configure, build. All messages go to stderr.
# shellcheck shell=bash
# shellcheck disable=SC2034  # the variables are used by the scripts that source this file

# Debian and Ubuntu package names. `package:command` is satisfied by the command as well.
build_packages=(cmake:cmake ninja-build:ninja g++:g++ libfmt-dev nlohmann-json3-dev libsimdjson-dev libcli11-dev
  libtbb-dev libhwy-dev libgtest-dev libbenchmark-dev python3:python3)
lint_packages=(clang-format-14:clang-format-14)
clang_packages=(clang-14:clang++-14 libclang-rt-14-dev)
ci_packages=("${clang_packages[@]}" clang-tidy-14:clang-tidy-14 binutils:nm qemu-user:qemu-x86_64 valgrind:valgrind)

say() { printf '%s\n' "mlaprefill: $*" >&2; }

# Prints the packages among the arguments that are not installed.
missing_packages() {
  local entry to_query=()
  for entry in "$@"; do
    if [[ $entry == *:* ]] && command -v "${entry#*:}" >/dev/null; then continue; fi
    to_query+=("${entry%%:*}")
  done
  ((${#to_query[@]})) || return 0
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "${to_query[@]}" 2>/dev/null | awk '/^ii/ {print $2}')
  for entry in "${to_query[@]}"; do
    grep -qxF "$entry" <<<"$installed" || printf '%s\n' "$entry"
  done
}

# Installs what is missing among the arguments; asks nothing.
need_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    local entry unmet=()
    for entry in "$@"; do
      if [[ $entry == *:* ]] && ! command -v "${entry#*:}" >/dev/null; then unmet+=("${entry#*:}"); fi
    done
    ((${#unmet[@]})) || return 0
    say "this system has no apt-get and these commands are missing: ${unmet[*]}"
    say "install what these Debian packages hold, then try again: ${*%%:*}"
    return 1
  fi
  local missing=()
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  local sudo=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || { say "run as root: apt-get install ${missing[*]}"; return 1; }
    sudo=(sudo)
  fi
  say "installing through apt-get: ${missing[*]}"
  {
    "${sudo[@]}" apt-get update -qq &&
      "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
  } >&2 </dev/null || { say "apt-get could not install: ${missing[*]}"; return 1; }
}

# configure PRESET: runs cmake once; ninja runs it again by itself when a CMake file changes.
configure() {
  [[ -f build/$1/build.ninja && build/$1/build.ninja -nt CMakePresets.json ]] && return 0
  say "configuring build/$1"
  cmake --preset "$1" >&2
}

# build PRESET [TARGET...]: silent when there is nothing to do. One build at a time in a build folder.
build() {
  local preset=$1
  shift
  mkdir -p "build/$preset"
  (
    flock 9
    configure "$preset" || exit 1
    if ninja -C "build/$preset" -n "$@" 2>/dev/null | grep -q 'no work to do'; then exit 0; fi
    say "building build/$preset"
    ninja -C "build/$preset" "$@" >&2
  ) 9>"build/$preset/.lock"
}

# run_tests PRESET CTEST ARGS...: ctest on what has been built, with the options of the sanitizers' runtimes.
run_tests() {
  local preset=$1
  shift
  export ASAN_OPTIONS=${ASAN_OPTIONS:-strict_string_checks=1:detect_stack_use_after_return=1}
  export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
  export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/scripts/tsan.supp:second_deadlock_stack=1}
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$(nproc)" "$@"
}
