# What the checks in this folder share; source it first. Their exit statuses:
#
#   0   it is as it should be
#   1   it is not, or the check broke
#   77  not checked: what it needs could not be had
#
# No other status leaves a check, whatever its tools end with: make's 2 is a failure.
readonly NOT_CHECKED=77
check_name="$(basename "$0")"
not_checked_because=""
trap 'end_check $?' EXIT

end_check() {  # STATUS
  at_exit
  if [[ "$1" == 0 ]]; then exit 0; fi
  if [[ "$1" != "$NOT_CHECKED" || -z "$not_checked_because" ]]; then exit 1; fi
  echo "$check_name: NOT CHECKED: $not_checked_because"
  exit "$NOT_CHECKED"
}
at_exit() { :; }  # for a check to replace

not_checked() {  # WHY
  not_checked_because="$1"
  exit "$NOT_CHECKED"
}

wrong() {  # WHAT
  echo "$check_name: $1" >&2
  exit 1
}

# Sets `program` to PATH in a wheel from PyPI, unpacked in the user's cache.
program_of_wheel() {  # NAME VERSION WHEEL SHA256 PATH
  local folder="${XDG_CACHE_HOME:-$HOME/.cache}/memledger/${1/_/-}-$2"
  program="$folder/$5"
  if [[ -x "$program" ]]; then return; fi
  mkdir -p "$folder"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$folder" "$1==$2" >&2 ||
    not_checked "pip could not download ${1/_/-} $2"
  echo "$4  $folder/$3" | sha256sum --quiet --check >&2 || wrong "$3 is not the file that was pinned"
  python3 -m zipfile -e "$folder/$3" "$folder"
  chmod +x "$program"
}
