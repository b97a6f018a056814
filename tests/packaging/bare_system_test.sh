#!/usr/bin/env bash
# Scripts that run as root and remove folders: which they refuse, and that they leave those as they
# are. debootstrap and the user's number are stand-ins.
source tests/support/shell_test.sh || exit 1
work="${TEST_TMPDIR:?}/work"
mkdir -p "$work/tools" "$work/packaging" "$work/third_party" || exit 1
cp -L packaging/{bare_system,build_tree,build_wheel} "$work/packaging/"
cp -L third_party/libtorch_versions.bzl "$work/third_party/"
echo 'import sys; open(sys.argv[0] + ".ran", "w"); sys.exit(1)' > "$work/third_party/fetch_libtorch.py"
cat > "$work/tools/id" << 'END'
#!/bin/sh
echo "${USER_NUMBER:-0}"
END
cat > "$work/tools/debootstrap" << 'END'
#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
[[ ! -e "$2/left_over" && -e "$2/.memledger_bare_system" ]] || exit 1
touch "$2/left_over"
[[ -z "$INTERRUPTED" ]] || exit 1
mkdir -p "$2/etc/apt/apt.conf.d" "$2/etc/ssl/certs"
echo "VERSION_CODENAME=$1" > "$2/etc/os-release"
END
for tool in patchelf objdump strip; do printf '#!/bin/sh\n' > "$work/tools/$tool"; done
chmod +x "$work"/tools/*

run() {  # COMMAND…: its output is in $work/out, its status in `status`
  PATH="$work/tools:$PATH" MEMLEDGER_MIRROR=http://localhost:9/debian "$@" > "$work/out" 2>&1
  status=$?
}
bare_system() { run "$work/packaging/bare_system" "$@"; }  # ARGUMENT…
shown_on_failure=("$work/out")
listed() { (cd "$1" && find . | sort && find . -type f -exec cat {} +); }  # FOLDER

refuses() {  # FOLDER COMMAND…
  local before after
  before="$(listed "$1")"
  run "${@:2}"
  check "${*:2}: status" equal "$status" 1
  check "${*:2}: named, with the remedy" has "$work/out" "$1 has something in it that bare_system has not made: name a folder that is empty or not there yet"
  after="$(listed "$1")"
  same "${*:2}: as it was" "$after" "$before"
}

# What is not ours.
mkdir -p "$work/thesis/etc"
echo "two years" > "$work/thesis/chapter_1"
echo "mine" > "$work/thesis.log"
for option in "" --fresh; do
  refuses "$work/thesis" "$work/packaging/bare_system" bookworm "$work/thesis" $option
  refuses "$work/thesis" "$work/packaging/bare_system" bookworm "$work/thesis" $option --packages g++ -- true
done
ln -s "$work/thesis" "$work/link"
refuses "$work/thesis" "$work/packaging/bare_system" bookworm "$work/link"
refuses "$work/thesis" env USER_NUMBER=1000 "$work/packaging/bare_system" bookworm "$work/thesis"
echo "one file" > "$work/file"
bare_system bookworm "$work/file"
check "a file: status" equal "$status" 1
check "a file: as it was" equal "$(cat "$work/file")" "one file"
bare_system bookworm ""
check "no name: status" equal "$status" 2
refuses "$work/thesis" "$work/packaging/build_wheel" --out "$work/dist" --system "$work/thesis"
check "nothing was downloaded before" test ! -e "$work/third_party/fetch_libtorch.py.ran"

# What is not there or empty is made, what was begun is made again, what was made is used.
for name in absent empty begun; do
  case "$name" in
    empty) mkdir "$work/empty" ;;
    begun)
      INTERRUPTED=1 bare_system bookworm "$work/begun"
      check "an interruption: status" equal "$status" 1
      ;;
  esac
  bare_system bookworm "$work/$name"
  check "$name: status" equal "$status" 0
  check "$name: made" has "$work/out" "making bookworm in $work/$name"
  echo mine > "$work/$name/a_file"
  bare_system bookworm "$work/$name"
  check "$name, again: status" equal "$status" 0
  check "$name, again: not made" has_not "$work/out" "making"
  check "$name, again: as it was" has "$work/$name/a_file" mine
done
bare_system jammy "$work/absent"
check "another release: status" equal "$status" 1
check "another release: named" has "$work/out" "$work/absent holds bookworm, not jammy: add --fresh"
rm "$work/absent/.memledger_bare_system"  # as earlier versions made it
bare_system jammy "$work/absent" --fresh
check "made again on request: status" equal "$status" 0
check "made again on request" has "$work/absent/etc/os-release" jammy
check "nothing of the earlier one is there" test ! -e "$work/absent/a_file"
check "no file beside it is touched" equal "$(cat "$work/thesis.log")" mine
check "no file lies beside it" test ! -e "$work/absent.log"

if [[ ! -e /etc/memledger_bare_system ]]; then
  run "$work/packaging/build_tree" "$work" "$work/thesis"
  check "build_tree outside such a system: status" equal "$status" 1
  check "build_tree outside such a system: told" has "$work/out" "build_tree: this is no system of packaging/bare_system"
  check "build_tree: as it was" has "$work/thesis/chapter_1" "two years"
fi
finish
