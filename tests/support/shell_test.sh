# What tests in bash share. They begin in the folder of their runfiles:
#
#   source tests/support/shell_test.sh
#   check "exit status" equal "$status" 0
#   check "the report" has err "nothing unexplained"
#   finish
#
# A test goes on after a failure, so that one run shows all of them. One that does not come to
# finish has failed.
set -uo pipefail

failures=0
is_finished=false
trap '"$is_finished" || { echo "FAILED: the test did not come to its end"; exit 1; }' EXIT
shown_on_failure=()  # files

fail() {  # WHAT…
  echo "FAILED: $*"
  failures=$((failures + 1))
  ((${#shown_on_failure[@]} == 0)) || cat "${shown_on_failure[@]}"
}
check() {  # WHAT COMMAND ARGUMENT…: the command has to succeed
  local what="$1"
  shift
  "$@" || fail "$what"
}
same() {  # WHAT IS EXPECTED
  [[ "$2" == "$3" ]] && return
  diff <(echo "$3") <(echo "$2")
  fail "$1"
}
equal() { [[ "$1" == "$2" ]] || { echo "  '$1' is not '$2'"; return 1; }; }  # IS EXPECTED
has() { grep -qF -- "$2" "$1"; }                                             # FILE TEXT
has_not() { [[ -r "$1" ]] && ! grep -qF -- "$2" "$1"; }                      # FILE TEXT
matches() { grep -qE -- "$2" "$1"; }                                         # FILE PATTERN
matches_not() { [[ -r "$1" ]] && ! grep -qE -- "$2" "$1"; }                  # FILE PATTERN
finish() {
  is_finished=true
  exit "$((failures > 0))"
}
