#!/usr/bin/env bash
# What libmemledger_measure.so notes of calls that fail because a run's writes are held back.
#
# Usage: noted_files_test.sh LIBMEMLEDGER_MEASURE PROGRAM FAILING_CALLS
source tests/support/shell_test.sh

readonly measure="$PWD/$1" program="$PWD/$2" failing="$PWD/$3"
readonly data="$TEST_TMPDIR/data" run="$TEST_TMPDIR/run"
mkdir -p "$data"
mkfifo "$data/old.fifo"
touch "$data/there"
sleep 0.05  # file times are as coarse as the clock's ticks

# Makes one call, which fails with this error (0: it does as usual); prints what was noted, a line
# for each record.
noted() {  # CALL ERROR PATH…
  rm -rf "$run" && mkdir -p "$run/measure"
  local call="$1" error="$2" fails=""
  shift 2
  ((error == 0)) || fails="${call/fclose/fflush}"
  FAIL_CALL="$fails" FAIL_WITH="$error" MEMLEDGER_MEASURE="$run/measure" \
    LD_PRELOAD="$measure $failing" "$program" "$call" "$@" >"$TEST_TMPDIR/out"
  [[ ! -e "$run/measure/refused" ]] || tr '\0' '\n' <"$run/measure/refused" | paste -d' ' - -
}
is_noted() {  # CALL ERROR NAME AS [PATH]
  same "$1 with $2" "$(noted "$1" "$2" "$data/there" "$data/other")" "$4: $3 ${5:-$data/there}"
  same "$1 still fails with $2" "$(<"$TEST_TMPDIR/out")" "$1: $2"
}
is_not_noted() {  # CALL ERROR
  same "$1 with $2 is noted" "$(noted "$1" "$2" "$data/there" "$data/other")" ""
}

same "both ends of a rename between file systems" \
  "$(noted rename 18 "$data/there" "$data/other")" "rename to: EXDEV $data/other
rename: EXDEV $data/there"
for call in rename unlink remove rmdir mkdir truncate ftruncate fallocate posix_fallocate creat \
  symlink fopen msync; do
  as="${call#posix_}"
  [[ "$call" == rename ]] || is_noted "$call" 18 EXDEV "${as/%creat/open}"
  is_noted "$call" 75 EOVERFLOW "${as/%creat/open}"
  is_noted "$call" 30 EROFS "${as/%creat/open}"
  is_noted "$call" 28 ENOSPC "${as/%creat/open}"
  is_noted "$call" 122 EDQUOT "${as/%creat/open}"
  is_noted "$call" 5 EIO "${as/%creat/open}"
  is_noted "$call" 38 ENOSYS "${as/%creat/open}"
  # A program alone with its files meets these as well.
  is_not_noted "$call" 2
  is_not_noted "$call" 13
  is_not_noted "$call" 17
done
same "both ends of a link between file systems" \
  "$(noted link 18 "$data/there" "$data/other")" "link from: EXDEV $data/there
link: EXDEV $data/other"

for call in write pwrite writev pwritev fwrite fflush; do
  is_noted "$call" 28 ENOSPC write
  is_not_noted "$call" 5
done
same "fclose, which flushes" "$(noted fclose 28 "$data/there")" "write: ENOSPC $data/there"

# An address has room for 107 characters.
same "a connection that is refused" "$(cd "$data" && noted connect 111 there)" \
  "connect: socket $data/there"
same "no socket" "$(noted connect 0 "$data/missing")" ""

same "a FIFO from before the run" "$(noted open_nonblocking 0 "$data/old.fifo")" \
  "open: FIFO $data/old.fifo"
same "a FIFO by its relative path" \
  "$(cd "$data" && noted open_nonblocking 0 "./old.fifo")" "open: FIFO $data/old.fifo"
same "files that can be written" "$(noted create 0 "$data/there")" ""
rm -rf "$run" && mkdir -p "$run/measure" && sleep 0.05 && mkfifo "$data/new.fifo"
MEMLEDGER_MEASURE="$run/measure" LD_PRELOAD="$measure" "$program" open_nonblocking "$data/new.fifo" \
  >/dev/null
check "a FIFO of the run's own is noted" test ! -e "$run/measure/refused"

# A loop notes it once; two processes may note it twice, which the reader takes as one.
rm -rf "$run" && mkdir -p "$run/measure"
FAIL_CALL=rename FAIL_WITH=5 MEMLEDGER_MEASURE="$run/measure" LD_PRELOAD="$measure $failing" \
  python3 -c "
import os
for i in range(100):
    try: os.rename('$data/there', '$data/x')
    except OSError: pass
" && same "each once" "$(tr -dc '\0' <"$run/measure/refused" | wc -c)" 2

# Without the variable nothing is noted, nor in the dry run's own folders.
same "outside a run" "$(unset MEMLEDGER_MEASURE; noted rename 5 "$run/measure/x" "$data/y")" ""
finish
