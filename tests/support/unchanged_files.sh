# For tests of what a command leaves of files, after shell_test.sh. The working folder and $TMPDIR
# count; `how` is part of a failure's name.

state() {  # all of each file, and of its folder
  find . "$TMPDIR"/* -printf '%p %y %i %m %n %s %T@ %C@ %l\n' 2>/dev/null | sort && find . -type f -print0 | sort -z | xargs -0 cat --
}

unchanged() {  # WHAT COMMAND…: no byte is another one afterwards
  local what="$1"
  shift
  state >../before
  "$@"
  # What removes the temporary folder of a killed run may still be at it.
  for ((i = 0; i < 100; i++)); do
    state >../after
    cmp -s ../before ../after && return
    sleep 0.1
  done
  diff ../before ../after
  fail "$how: $what: files are as they were"
}
