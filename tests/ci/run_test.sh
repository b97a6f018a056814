#!/usr/bin/env bash
# .ci/run and .ci/matrix in a tree of a few files, with stand-ins for Bazel, CMake, pip,
# clang-format and clang-tidy. Each part is broken once, in each way in which it can break, and has
# to fail the run.
source tests/support/shell_test.sh || exit 1
work="${TEST_TMPDIR:?}/work"
tree="$work/tree"
mkdir -p "$work/tools" "$work/home" "$tree/tests/consumer" "$tree/third_party" "$tree/.ci" || exit 1
cp -L .ci/* "$tree/.ci/"
cp -L third_party/libtorch_versions.bzl "$tree/third_party/"
chmod u+w "$tree/.ci/rooms.txt"
echo '# No folder of the real tree is here.' > "$tree/.ci/rooms.txt"
echo '# A page' > "$tree/README.md"
if ! git --version > /dev/null 2>&1; then
  echo "SKIPPED: there is no git"
  finish
fi

# What a stand-in does is in BREAK: PART:HOW. Each knows the parts that are its own.
stand_in() {  # FILE, from standard input
  mkdir -p "$(dirname "$1")"
  { echo '#!/usr/bin/env bash'; cat; } > "$1"
  chmod +x "$1"
}
for tool in basename bash cat chmod cp date dirname env find git grep head ls mkdir mktemp nproc readlink rm sed sha256sum sleep sort tail tee timeout touch xargs; do
  ln -s "$(command -v "$tool")" "$work/tools/$tool"
done
python="$(python3 -c 'import sys; print(sys.executable)')"
stand_in "$work/tools/python3" << END
case "\$BREAK \$*" in
  *:no_pip" -m pip download "*) echo "no network" >&2; exit 1 ;;
  *:pip2" -m pip download "*) exit 2 ;;
  *:other_wheel" -m pip download "*)
    while [[ "\$1" != --dest ]]; do shift; done
    for name in clang_format-14.0.6-py2.py3-none-manylinux_2_12_x86_64.manylinux2010_x86_64.whl \\
        clang_tidy-22.1.8-py2.py3-none-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl; do echo junk > "\$2/\$name"; done ;;
  *) exec "$python" "\$@" ;;
esac
END
stand_in "$tree/bazelw" << 'END'
[[ "$BREAK" != bazelw:gone ]] || exit 127
case "$1" in
  info)
    [[ "$BREAK" != cmake:no_info ]] || exit 2
    echo "$OUTPUT"
    exit ;;
  run)
    echo '(0.00B unexplained)'
    case "$BREAK" in
      quickstart:unexplained) echo '(1.00B unexplained)' ;;
      quickstart:before) echo '(0.00B unexplained)'; echo 'before tracking' ;;
      *) echo '(0.00B unexplained)' ;;
    esac
    [[ "$BREAK" != quickstart:status* ]] || exit "${BREAK#quickstart:status}"
    exit ;;
esac
case "$*" in
  *--config=tsan*) part=tsan ;;
  *--config=sanitize*) part=sanitize ;;
  *--config=cxx20*) part=newest ;;
  *) part=plain ;;
esac
[[ "${BREAK%%:*}" == "$part" ]] && how="${BREAK#*:}" || how=""
case "$how" in
  nothing) exit 4 ;;
  quiet) exit 0 ;;
  build) echo "ERROR: compilation failed"; exit 1 ;;
  late) sleep 3; exit 8 ;;
esac
printf '%-60s %s\n' //tests/a:one 'PASSED in 0.1s' //tests/a:two '(cached) PASSED in 0.2s'
case "$how" in
  status*) exit "${how#status}" ;;
  flaky) echo '//tests/a:three    FLAKY, failed in 1 out of 2 in 0.1s' ;;
  ?*) printf '%-60s %s\n' //tests/a:three "$how"; exit 3 ;;
esac
exit 0
END
stand_in "$work/tools/cmake" << 'END'
case "$1:$BREAK" in
  -S:cmake:configure | --build:cmake:build1) exit 1 ;;
  --build:cmake:build2) exit 2 ;;
  --build:cmake:build77) exit 77 ;;
esac
[[ "$1" == -S ]] || exit 0
while [[ "$1" != -B ]]; do shift; done
mkdir -p "$2/memledger/memledger/bin"
[[ "$BREAK" == cmake:unexplained ]] && line='(1.00B unexplained)' || line='(0.00B unexplained)'
printf '#!/usr/bin/env bash\necho "%s"\n' "$line" > "$2/train"
[[ "$BREAK" == cmake:no_report ]] && line='' || line='(process 12, rank 0)'
printf '#!/usr/bin/env bash\necho "%s"\n' "$line" > "$2/memledger/memledger/bin/memledger"
chmod +x "$2/train" "$2/memledger/memledger/bin/memledger"
END
stand_in "$work/tools/ctest" << 'END'
[[ "$BREAK" != cmake:ctest* ]] || exit "${BREAK#cmake:ctest}"
END
programs="$work/home/.cache/memledger"
stand_in "$programs/clang-format-14.0.6/clang_format/data/bin/clang-format" << 'END'
[[ "$BREAK" != format:status* ]] || exit "${BREAK#format:status}"
END
stand_in "$programs/clang-tidy-22.1.8/clang_tidy/data/bin/clang-tidy" << 'END'
case "$BREAK" in
  tidy:status*) exit "${BREAK#tidy:status}" ;;
  tidy:slow_once) [[ "$*" != *b.cc* ]] || sleep 5 ;;
esac
END
output="$work/output"
mkdir -p "$output/external/libtorch/torch/include/ATen" "$output/execroot/memledger/bin"
touch "$output/external/libtorch/torch/include/ATen/ATen.h"
ln -s "$output/execroot/memledger/bin" "$tree/bazel-bin"
echo 'build --cxxopt=-std=c++17' > "$tree/.bazelrc"
touch "$tree/tests/consumer/ten_lines.cc"
echo '/bazel-*' > "$tree/.gitignore"
commit() { git -C "$tree" add -A && git -C "$tree" -c user.name=t -c user.email=t@localhost commit -q --no-verify -m "$1"; }
export HOME="$work/home" GIT_CONFIG_NOSYSTEM=1
unset XDG_CACHE_HOME LIBTORCH LIBTORCH_VERSION CI MEMLEDGER_CI_SECONDS
git -c init.defaultBranch=main init -q "$tree"
check "a first commit" commit first
echo '// A comment.' | tee "$tree/a.cc" > "$tree/b.cc"
check "a second commit" commit second

# Runs a command of the tree's; its output is in $work/out, its status in `status`.
in_tree() {  # BREAK [NAME=VALUE]… COMMAND ARGUMENT…
  env -i PATH="$work/tools" HOME="$HOME" GIT_CONFIG_NOSYSTEM=1 OUTPUT="$output" BREAK="$1" "${@:2}" > "$work/out" 2>&1
  status=$?
}
closes() { equal "$(tail -n 1 "$work/out")" "$1"; }
# Two tests in each of four runs of Bazel, and six parts more.
passing="14 passed, 0 failed"
fails() {  # PART BREAK [NAME=VALUE]…: the run, with one failure
  in_tree "$2" "${@:3}" "$tree/.ci/run"
  check "$2 fails the run" equal "$status" 1
  check "$2: one failure" matches "$work/out" ' 1 failed$'
  check "$2: $1 is named" matches "$work/out" "^ci: $1: .*FAILED"
}
tells() {  # CHECK BREAK WHY [NAME=VALUE]…: the run goes on, and lists what was not checked
  in_tree "$2" "${@:4}" "$tree/.ci/run"
  check "$1 without its tool ($2) is no failure" equal "$status" 0
  check "$1 without its tool ($2) is told" has "$work/out" "ci: $1: NOT CHECKED: $3"
  check "$1 without its tool ($2) is listed" has "$work/out" "  $1: $3"
  check "$1 without its tool ($2) is not counted" closes "13 passed, 0 failed"
  fails "$1" "$2" CI=true "${@:4}"
}
shown_on_failure=("$work/out")

in_tree none "$tree/.ci/run"
check "all is well" equal "$status" 0
check "all is counted" closes "$passing"
check "nothing is said not to have been checked" has_not "$work/out" "NOT CHECKED"

# What Bazel runs.
for part in plain tsan sanitize newest; do
  case "$part" in
    tsan) name="thread sanitizer" ;;
    sanitize) name="address and undefined-behaviour sanitizers, warnings are errors" ;;
    newest) name="LibTorch 2.15" ;;
    *) name=plain ;;
  esac
  for how in nothing quiet build 'FAILED in 0.1s'; do fails "$name" "$part:$how"; done
done
for how in 'TIMEOUT in 60.0s' 'NO STATUS' 'FAILED TO BUILD' 'REMOTE FAILURE' flaky status1 status2 status77 status137; do fails plain "plain:$how"; done
in_tree bazelw:gone "$tree/.ci/run"
check "no Bazel" equal "$status" 1
fails "quickstart" quickstart:unexplained
fails "quickstart" quickstart:before
fails "quickstart" quickstart:status2
in_tree plain:late MEMLEDGER_CI_SECONDS=1 "$tree/.ci/run"
check "no time, although the machine is not slow: status" equal "$status" 1
check "no time: told" has "$work/out" "ci: plain: NOT CHECKED: NOT RUN to its end"

# A test that skips is not counted as passed, whichever way it says so.
mkdir -p "$tree/bazel-testlogs/tests/a/one" "$tree/bazel-testlogs/tests/a/two/shard_1_of_2" "$tree/bazel-testlogs/tests/a/gone"
echo 'SKIPPED: from a run long ago' > "$tree/bazel-testlogs/tests/a/gone/test.log"
echo 'SKIPPED: there is no spoon' > "$tree/bazel-testlogs/tests/a/one/test.log"
in_tree none "$tree/.ci/run"
check "skipped tests: status" equal "$status" 0
check "skipped tests are listed" has "$work/out" "  plain: //tests/a:one: there is no spoon"
check "only those of the run" has_not "$work/out" "long ago"
check "skipped tests are not counted" closes "10 passed, 0 failed"
echo 'a.cc:3: MESSAGE: SKIPPED: no tmpfs' > "$tree/bazel-testlogs/tests/a/two/shard_1_of_2/test.log"
in_tree none "$tree/.ci/run"
check "doctest's way, in a shard" has "$work/out" "  plain: //tests/a:two: no tmpfs"
echo 'a.cc:3: MESSAGE: skipped: no tmpfs: SKIPPED' > "$tree/bazel-testlogs/tests/a/two/shard_1_of_2/test.log"
in_tree none "$tree/.ci/run"
check "in small letters" has "$work/out" "  plain: //tests/a:two: no tmpfs"
check "all tests skipped: no test ran" equal "$status" 1
check "all tests skipped: counted in each run of Bazel" closes "6 passed, 4 failed"
rm -r "$tree/bazel-testlogs"

# The checks. Each status of a tool but 0 is a failure, 2 and 77 as well.
for how in configure build1 build2 build77 unexplained no_report ctest8 ctest77 no_info; do fails cmake "cmake:$how"; done
for how in status1 status2 status77 status139; do fails format "format:$how"; done
for how in status1 status2 status77 status139; do fails tidy "tidy:$how"; done
printf '%0101d\n' 0 | sed 's,^,// ,' > "$tree/a.cc"
fails comments comments:long
git -C "$tree" checkout -q a.cc
echo 'It is in `.ci/none.sh`.' >> "$tree/README.md"
fails pages pages:name
git -C "$tree" checkout -q README.md
in_tree none "$tree/.ci/pages" --self-test
check "each rule of .ci/pages fails once" equal "$status" 0

# Tools that could not be had.
mv "$work/tools/cmake" "$work/tools/cmake.away"
tells cmake none "there is no cmake"
mv "$work/tools/cmake.away" "$work/tools/cmake"
mv "$output/external/libtorch/torch" "$output/external/libtorch/away"
in_tree none "$tree/.ci/run"
check "no LibTorch: CMake's" has "$work/out" "  cmake: Bazel has no LibTorch yet"
check "no LibTorch: clang-tidy's" has "$work/out" "  tidy: no LibTorch in Bazel's output folder"
check "no LibTorch" closes "12 passed, 0 failed"
mv "$output/external/libtorch/away" "$output/external/libtorch/torch"
for tool in format tidy; do
  mv "$programs"/clang-$tool-* "$work/"
  tells "$tool" "$tool:no_pip" "pip could not download clang-$tool"
  tells "$tool" "$tool:pip2" "pip could not download clang-$tool"
  fails "$tool" "$tool:other_wheel"
  rm -r "$programs"/clang-$tool-*
  mv "$work"/clang-$tool-* "$programs/"
done
tells tidy none "no time was left for any file" MEMLEDGER_TIDY_SECONDS=0
in_tree tidy:slow_once MEMLEDGER_TIDY_SECONDS=2 "$tree/.ci/run"
check "some time for clang-tidy: counted" closes "$passing"
check "some time for clang-tidy: told" has "$work/out" "  tidy: no time was left for b.cc"
for script in run cmake comments format pages tidy; do
  mv "$tree/.ci/$script" "$work/away"
  in_tree none "$tree/.ci/run"
  check "without .ci/$script" test "$status" != 0
  mv "$work/away" "$tree/.ci/$script"
done

# Nothing to look at, or nothing to compare with.
in_tree none "$tree/.ci/tidy" no_such_commit
check "clang-tidy against a commit that is none" equal "$status" 1
check "  named" has "$work/out" "tidy: Git cannot compare with no_such_commit"
mv "$tree/.git" "$work/git"
for script in format comments pages; do
  in_tree none "GIT_CEILING_DIRECTORIES=$work" "$tree/.ci/$script"
  check ".ci/$script without Git" equal "$status" 1
done
git -c init.defaultBranch=main init -q "$tree"
for script in format comments pages; do
  in_tree none "$tree/.ci/$script"
  check ".ci/$script without a file" equal "$status" 1
done
in_tree none "$tree/.ci/tidy"
check "clang-tidy without a commit" equal "$status" 77
rm -rf "$tree/.git"
mv "$work/git" "$tree/.git"

# The matrix: what was not tried has not passed.
cat > "$tree/third_party/fetch_libtorch.py" << 'END'
import os, sys
if os.environ["BREAK"] == "matrix:fetch":
    sys.exit(1)
if os.environ["BREAK"] != "matrix:silent":
    print(os.environ["OUTPUT"] + "/external/libtorch/torch")
END
matrix() {  # STATUS CLOSING BREAK ARGUMENT…
  in_tree "$3" "$tree/.ci/matrix" "${@:4}"
  check ".ci/matrix ${*:4} ($3): status" equal "$status" "$1"
  check ".ci/matrix ${*:4} ($3)" closes "$2"
}
matrix 0 "1 passed, 0 failed" none 2.15.0
matrix 1 "0 passed, 1 failed" none 9.9.9
check "an unknown version: named" has "$work/out" "matrix: LibTorch 9.9.9: it is none of "
matrix 1 "1 passed, 1 failed" none 2.15.0 9.9.9
matrix 1 "0 passed, 1 failed" none full 9.9.9
matrix 1 "0 passed, 1 failed" matrix:fetch 2.15.0
matrix 1 "0 passed, 1 failed" matrix:silent 2.15.0
matrix 1 "0 passed, 1 failed" cmake:build2 2.15.0
matrix 0 "1 passed, 0 failed" none full 2.13.0
matrix 1 "0 passed, 1 failed" plain:quiet full 2.13.0
matrix 1 "0 passed, 1 failed" 'plain:FAILED in 1s' full 2.13.0
mv "$work/tools/cmake" "$work/tools/cmake.away"
matrix 1 "0 passed, 1 failed" none 2.15.0
mv "$work/tools/cmake.away" "$work/tools/cmake"
rm "$tree/third_party/libtorch_versions.bzl"
in_tree none "$tree/.ci/matrix"
check "a matrix of no version" equal "$status" 1
finish
