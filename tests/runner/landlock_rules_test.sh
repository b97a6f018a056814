#!/usr/bin/env bash
# Every way to change files by system calls, from a static program: it works bare, and fails where
# writes are held by Landlock and seccomp. As root and as another user.
#
# Usage: landlock_rules_test.sh HELD_PROGRAM RAW_WRITES_PROGRAM
source tests/support/shell_test.sh

work="$(mktemp -d /tmp/memledger-landlock-XXXXXX)"
sleep 600 &
readonly work outside=$!
trap 'kill "$outside"; rm -rf "$work"' EXIT
chmod 755 "$work"
cp "$1" "$work/held"
cp "$2" "$work/raw"
chmod 755 "$work/held" "$work/raw"

# Each file's content, times, mode, owner and attributes.
state_of() {  # FOLDER
  python3 - "$1" <<'PYTHON'
import hashlib, os, sys
for folder, folders, files in sorted(os.walk(sys.argv[1])):
    for path in sorted([folder] + [os.path.join(folder, name) for name in files]):
        s = os.lstat(path)
        content = b'' if os.path.isdir(path) else open(path, 'rb').read()
        attributes = [(name, os.getxattr(path, name)) for name in os.listxattr(path)]
        print(path, hashlib.sha256(content).hexdigest(), s.st_mode, s.st_uid, s.st_gid, s.st_nlink,
              s.st_mtime_ns, s.st_ctime_ns, sorted(attributes))
PYTHON
}

# Ways that may be closed without us as well, by privileges or by the system's settings; where they
# are, nothing is shown by their failing. So may be what this kernel or file system does not know.
readonly may_be_closed="fsopen mknod_device mknod_disk_in_private_folder mount open_by_handle open_tree
mount_in_user_namespace ptrace memory_of_process descriptor_of_process open_by_root_outside"
closed_bare() {  # FILE
  grep -vE ': (ok|25|38|95)$' "$1" | cut -d: -f1 | grep -vxFf <(printf '%s\n' $may_be_closed)
}

try_as() {  # USER COMMAND-PREFIX…
  local user="$1" home="$work/$1"
  shift
  mkdir "$home" && chmod 777 "$home" && cd "$home" || return
  "$@" mkdir real bare private
  "$@" "$work/raw" prepare "$home/real"
  "$@" "$work/raw" prepare "$home/bare"
  "$@" sleep 600 &
  local victim=$!
  sleep 0.2  # until it is this user's

  "$@" "$work/raw" try "$home/bare" "$home/private" "$victim" >"$home/bare.out"
  same "$user: ways that are closed bare" "$(closed_bare "$home/bare.out")" ""

  local before
  before="$(state_of "$home/real")"
  "$@" rm -rf private && "$@" mkdir private
  "$@" "$work/held" 0 "$home/private" "$work/raw" try "$home/real" "$home/private" "$victim" \
    >"$home/held.out"
  same "$user: as many ways" "$(cut -d: -f1 "$home/held.out")" "$(cut -d: -f1 "$home/bare.out")"
  same "$user: ways that are open" "$(grep -v ': [0-9]*$' "$home/held.out")" ""
  same "$user: real files" "$(state_of "$home/real")" "$before"

  local key=12345678901234567
  "$@" rm -rf private && "$@" mkdir private
  "$@" "$work/held" "$key" "$home/private" "$work/raw" allowed "$home/private" "$key" \
    >"$home/allowed.out"
  same "$user: what private files cannot do" "$(grep -v ': ok$' "$home/allowed.out")" \
    "private chmod without: 1
private chmod with half of it: 1"

  "$@" bash -c 'exec 7>>real/open_write; exec "$0" 0 "$1" /bin/true' "$work/held" "$home/private" \
    2>"$home/err"
  check "$user: a descriptor that is open for writing" equal "$?" 3
  check "$user: the descriptor" has "$home/err" "descriptor 7 is open for writing to $home/real/open_write"
  "$@" bash -c 'exec 7<real/open_write 8>>private/x 9>/dev/null; exec "$0" 0 "$1" /bin/true' \
    "$work/held" "$home/private"
  check "$user: descriptors that are held" equal "$?" 0
  "$@" "$work/held" 0 "$home/missing" /bin/true 2>"$home/err"
  check "$user: a private folder that is missing" equal "$?" 3
  kill "$victim"
}

if ((EUID == 0)); then
  try_as root env
  try_as nobody setpriv --reuid=65534 --regid=65534 --clear-groups
else
  try_as user env
fi
finish
