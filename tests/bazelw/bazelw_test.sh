#!/usr/bin/env bash
# bazelw with stand-ins for every program it may find: which Bazel it takes, and which arguments
# that one gets.
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir "$work/tree" "$work/tools" "$work/caller"
cp -L "$1" "$work/tree/bazelw"
# The other programs that bazelw calls. No apt-get, so nothing can be installed.
for tool in awk bash cut dirname env find mkdir readlink rm sed sha256sum sort touch uname xargs; do
  ln -s "$(command -v "$tool")" "$work/tools/$tool"
done
for tool in g++ pkg-config python3 cmake make; do
  printf '#!/usr/bin/env bash\n' >"$work/tools/$tool"
  chmod +x "$work/tools/$tool"
done

failures=0
check() {  # WHAT EXPECTED ACTUAL
  if [[ "$2" != "$3" ]]; then
    printf 'FAILED: %s\n  expected: %s\n  got:      %s\n' "$1" "$2" "$3"
    failures=$((failures + 1))
  fi
}

# Writes FOLDER/NAME, a Bazel whose version is what BODY leaves in `version`; `none`: it does not
# start.
program() {  # FOLDER NAME BODY
  mkdir -p "$work/$1"
  cat >"$work/$1/$2" <<PROGRAM
#!/usr/bin/env bash
$3
[[ "\$version" != none ]] || exit 1
if [[ "\${1:-}" == --version ]]; then echo "bazel \$version"; else echo "$2 \$version: \$*"; fi
PROGRAM
  chmod +x "$work/$1/$2"
}

# Prints what bazelw prints with FOLDER's programs, called from another folder. ENVIRONMENT is a
# list of NAME=VALUE.
bazelw() {  # FOLDER ENVIRONMENT ARGUMENTS…
  local folder="$1" environment
  read -ra environment <<<"$2"
  shift 2
  (cd "$work/caller" && env -i PATH="$work/$folder:$work/tools" LIBTORCH=/somewhere MEMLEDGER_CACHE=off "${environment[@]}" \
    "$work/tree/bazelw" "$@" 2>&1) || echo "rc $?"
}

# Options: none before Bazel 6, one from there, two from 8; always right after the verb.
for version in no_version 4.2.3 5.4.1; do
  program "plain" bazel-4 "version=$version"
  check "options of $version" "bazel-4 $version: test //..." "$(bazelw plain "" test //...)"
done
for version in 6.5.0 7.0.0 7.4.1; do
  program "plain" bazel-4 "version=$version"
  check "options of $version" "bazel-4 $version: test --noenable_bzlmod //..." "$(bazelw plain "" test //...)"
done
program "plain" bazel-4 "version=8.1.0"
check "options of 8" "bazel-4 8.1.0: run --noenable_bzlmod --enable_workspace //a:b -- build" "$(bazelw plain "" run //a:b -- build)"
check "startup option" "bazel-4 8.1.0: --output_base=/o build --noenable_bzlmod --enable_workspace -k //..." \
  "$(bazelw plain "" --output_base=/o build -k //...)"
check "startup option in two words" "bazel-4 8.1.0: --batch --output_base /o query --noenable_bzlmod --enable_workspace //..." \
  "$(bazelw plain "" --batch --output_base /o query //...)"
check "another verb" "bazel-4 8.1.0: help build" "$(bazelw plain "" help build)"
check "another verb after a startup option" "bazel-4 8.1.0: --output_base=/o help build" "$(bazelw plain "" --output_base=/o help build)"
check "no verb" "bazel-4 8.1.0: " "$(bazelw plain "")"
check "an argument of several words" "bazel-4 8.1.0: query --noenable_bzlmod --enable_workspace deps(//a, 1)" "$(bazelw plain "" query "deps(//a, 1)")"

# BAZEL goes first, and is checked before anything is installed.
program "chosen" bazel "version=7.4.1"
check "BAZEL" "bazel 7.4.1: build --noenable_bzlmod x" "$(bazelw plain "BAZEL=$work/chosen/bazel" build x)"
check "BAZEL from the caller's folder" "bazel 7.4.1: version" "$(bazelw plain "BAZEL=../chosen/bazel" version)"
check "BAZEL that is not there" "bazelw: BAZEL=/nope is not a program
rc 1" "$(bazelw empty "BAZEL=/nope" version)"

# Debian's launcher without bazel-4.2.3 next to it: only `latest` starts.
program "debian" bazel 'version=none; if [[ "${USE_BAZEL_VERSION:-}" == latest ]]; then version=no_version; fi'
check "Debian's launcher" "bazel no_version: test x" "$(bazelw debian "" test x)"

# bazelisk: .bazelversion's if it can be had, then the pinned one, never whatever is newest.
bazelisk='version="${USE_BAZEL_VERSION:-4.2.3}"; if [[ "$version" == latest ]]; then version=9.0.0; fi'
program "isk" bazelisk "$bazelisk"
check "bazelisk" "bazelisk 4.2.3: test x" "$(bazelw isk "" test x)"
check "bazelisk, the user's version" "bazelisk 6.5.0: test --noenable_bzlmod x" "$(bazelw isk "USE_BAZEL_VERSION=6.5.0" test x)"
check "bazelisk, latest" "bazelw: USE_BAZEL_VERSION=latest is Bazel 9; this workspace needs 4 to 8. Using another.
bazelisk 4.2.3: test x" "$(bazelw isk "USE_BAZEL_VERSION=latest" test x)"
program "isk_no4" bazelisk "$bazelisk"'; if [[ "$version" == 4.2.3 ]]; then version=none; fi'
check "bazelisk without 4.2.3" "bazelisk 7.4.1: test --noenable_bzlmod x" "$(bazelw isk_no4 "" test x)"

# A Bazel that cannot read WORKSPACE is as good as none.
program "nine" bazel "version=9.0.0"
[[ "$(bazelw nine "" test x)" == "bazelw: missing: bazel-bootstrap"*"rc 1" ]] || check "Bazel 9 alone" "bazelw: missing: bazel-bootstrap …" "$(bazelw nine "" test x)"

# Only tests build with CMake.
program "plain" bazel-4 "version=4.2.3"
rm "$work/tools/cmake"
check "no cmake needed to run" "bazel-4 4.2.3: run //a:test" "$(bazelw plain "" run //a:test)"
[[ "$(bazelw plain "" test x)" == "bazelw: missing: cmake"*"rc 1" ]] || check "cmake" "bazelw: missing: cmake …" "$(bazelw plain "" test x)"
ln -s /bin/true "$work/tools/cmake"

# A LIBTORCH relative to the caller's folder still means that folder.
mkdir "$work/caller/torch"
program "plain" bazel-4 'version=4.2.3; [[ "${1:-}" == --version ]] || echo "LIBTORCH=$LIBTORCH"'
check "relative LIBTORCH" "LIBTORCH=$work/caller/torch
bazel-4 4.2.3: build x" "$(bazelw plain "LIBTORCH=torch" build x)"

# Clones share compiled files, one folder for each toolchain, and the unpacked LibTorch.
program "plain" bazel-4 'version=4.2.3'
cache="$work/cache"
shared="$(bazelw plain "MEMLEDGER_CACHE=$cache" test x)"
[[ "$shared" =~ ^"bazel-4 4.2.3: test --disk_cache=$cache/bazel/"[0-9a-f]{12}" x"$ ]] || check "disk cache" "--disk_cache=$cache/bazel/…" "$shared"
check "disk cache, again" "$shared" "$(bazelw plain "MEMLEDGER_CACHE=$cache" test x)"
check "disk cache of a relative folder" "${shared//$cache/$work/caller/../cache}" "$(bazelw plain "MEMLEDGER_CACHE=../cache" test x)"
check "disk cache in HOME" "${shared//$cache/$work/home/.cache/memledger}" "$(bazelw plain "MEMLEDGER_CACHE= HOME=$work/home" test x)"
check "no home" "bazel-4 4.2.3: test x" "$(bazelw plain "MEMLEDGER_CACHE=" test x)"
check "disk cache of no use" "bazel-4 4.2.3: query x" "$(bazelw plain "MEMLEDGER_CACHE=$cache" query x)"
printf '#!/usr/bin/env bash\necho another compiler\n' >"$work/tools/g++"
[[ "$(bazelw plain "MEMLEDGER_CACHE=$cache" test x)" != "$shared" ]] || check "another compiler" "another folder" "$shared"
touch "$work/file"
check "a cache that cannot be written" "bazelw: cannot write to $work/file/cache: this build shares nothing with other clones
bazel-4 4.2.3: test x" "$(bazelw plain "MEMLEDGER_CACHE=$work/file/cache" test x)"

# A cache that anybody may have filled is not used.
mkdir "$work/open" "$work/tmp" "$work/own"
chmod 0777 "$work/open"
chmod 1777 "$work/tmp"
refusal() { printf 'bazelw: others can change %s: this build shares nothing with other clones\nbazel-4 4.2.3: test x' "$1"; }
check "a cache that all can write to" "$(refusal "$work/open")" "$(bazelw plain "MEMLEDGER_CACHE=$work/open" test x)"
check "a cache that all can replace" "$(refusal "$work/open/cache")" "$(bazelw plain "MEMLEDGER_CACHE=$work/open/cache" test x)"
check "one's own cache in a folder like /tmp" 0 "$(bazelw plain "MEMLEDGER_CACHE=$work/tmp/mine" test x | grep -c 'others can change')"
if [[ "$EUID" == 0 ]]; then
  ln -s "$work/own" "$work/tmp/link"
  mkdir "$work/tmp/memledger"
  chown -h 65534 "$work/tmp/memledger" "$work/tmp/link"
  check "a cache that another user made first" "$(refusal "$work/tmp/memledger")" "$(bazelw plain "MEMLEDGER_CACHE= XDG_CACHE_HOME=$work/tmp" test x)"
  check "another user's link" "$(refusal "$work/tmp/link")" "$(bazelw plain "MEMLEDGER_CACHE=$work/tmp/link" test x)"
else
  echo "SKIPPED: only root can play another user"
fi

# A limit of 1 GB keeps one of two files of 0.6 GB: the one used last. What is not Bazel's stays.
compiled="$cache/bazel/0123456789ab/cas/ff"
mkdir -p "$compiled"
touch "$cache/bazel/.pruned"
truncate -s 600M "$compiled/ff01" "$compiled/ff02" "$cache/bazel/a_thesis" "$cache/bazel/0123456789ab/ff03"
touch -a -d yesterday "$compiled/ff01" "$cache/bazel/a_thesis" "$cache/bazel/0123456789ab/ff03"
bazelw plain "MEMLEDGER_CACHE=$cache MEMLEDGER_CACHE_GB=1" test x >/dev/null
check "within an hour of the last look nothing is removed" "ff01 ff02" "$(cd "$compiled" && echo *)"
rm "$cache/bazel/.pruned"
bazelw plain "MEMLEDGER_CACHE=$cache MEMLEDGER_CACHE_GB=2" test x >/dev/null
check "what fits stays" "ff01 ff02" "$(cd "$compiled" && echo *)"
rm "$cache/bazel/.pruned"
bazelw plain "MEMLEDGER_CACHE=$cache MEMLEDGER_CACHE_GB=1" test x >/dev/null
check "what was used longest ago goes" "ff02" "$(cd "$compiled" && echo *)"
check "what is not Bazel's stays" "0123456789ab a_thesis ff03" "$(cd "$cache/bazel" && echo * "$(basename 0123456789ab/ff*)")"
rm -f "$cache"/bazel/*/.pruned "$cache"/bazel/.pruned
check "a limit that is none" "bazelw: MEMLEDGER_CACHE_GB is not a whole number of gigabytes: '1.5'; using 20" \
  "$(bazelw plain "MEMLEDGER_CACHE=$cache MEMLEDGER_CACHE_GB=1.5" test x 2>&1 | sed -n 1p)"

program "plain" bazel-4 'version=4.2.3; [[ "${1:-}" == --version ]] || echo "LIBTORCH=$LIBTORCH"'
printf '#!/usr/bin/env bash\n[[ "$*" == *" --shared "* ]] || exit 0\necho "/unpacked by $*"\n' >"$work/tools/python3"
check "shared LibTorch" "LIBTORCH=/unpacked by third_party/fetch_libtorch.py --shared $cache/libtorch 2.15.0
bazel-4 4.2.3: query x" "$(bazelw plain "MEMLEDGER_CACHE=$cache LIBTORCH= LIBTORCH_VERSION=2.15.0" query x)"
check "with its Python for tests" "LIBTORCH=/unpacked by third_party/fetch_libtorch.py --shared $cache/libtorch 2.15.0 --python" \
  "$(bazelw plain "MEMLEDGER_CACHE=$cache LIBTORCH= LIBTORCH_VERSION=2.15.0" test x | sed -n 1p)"
printf '#!/usr/bin/env bash\n[[ "$*" != *" --shared "* ]] || exit 1\n' >"$work/tools/python3"
check "a LibTorch that cannot be had" "rc 1" "$(bazelw plain "MEMLEDGER_CACHE=$cache LIBTORCH=" query x)"

[[ "$failures" == 0 ]] && echo "all passed"
