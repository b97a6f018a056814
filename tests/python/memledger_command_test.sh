#!/usr/bin/env bash
# memledger_command_test.sh MEMLEDGER_COMMAND_PY
#
# The wheel's console script takes the command that was built for the caller's torch. Commands and
# Pythons are stand-ins: a command prints its release and its words, a Python answers with its
# torch.
source tests/support/shell_test.sh
script="$PWD/$1"
cd "$TEST_TMPDIR" || exit 1
shown_on_failure=(out err)
real_python="$(python3 -c 'import sys; print(sys.executable)')"
mkdir -p wheel
cp "$script" wheel/memledger_command.py

command_of() {  # RELEASE
  mkdir -p "wheel/memledger/lib/$1/bin"
  {
    echo '#!/bin/sh'
    echo '[ "$2" = --help ] && exec cat help'
    printf 'echo "%s: $*"\n' "$1"
  } >"wheel/memledger/lib/$1/bin/memledger"
  chmod +x "wheel/memledger/lib/$1/bin/memledger"
}
python_with() {  # FOLDER TORCH: a python3 whose torch is this; empty: none
  mkdir -p "$1"
  printf '#!/bin/sh\n[ "$1" = -c ] && echo "%s"\n' "$2" >"$1/python3"
  chmod +x "$1/python3"
}
run() {  # FOLDER WORD…: with FOLDER first in PATH
  PATH="$PWD/$1:$PATH" "$real_python" wheel/memledger_command.py "${@:2}" >out 2>err
}
takes() {  # WHAT RELEASE FOLDER WORD…
  run "${@:3}"
  check "$1: status" equal $? 0
  check "$1" equal "$(cat out err)" "$2: ${*:4}"
}

run . --version
check "no command in the wheel: status" equal $? 2
check "no command in the wheel: told" has err "memledger: this wheel has no command in it"

cat >help <<'EOF'
Options:
  -h, --help                  Print this help.
  --virtual-gpu=GPU[:MEMORY][+GPU…][,count=N]
                              Use virtual GPUs instead of real ones.
  --log=FOLDER                Write reports to files in FOLDER.
  -q, --quiet                 Print no report on standard error.
  --report[=full]             Print the tables behind the summary as well.
  -f, --function=FUNCTION     Profile the memory of each line of FUNCTION.
EOF
# In the order of numbers, not of letters.
for release in 2.9 2.10 2.11; do command_of $release; done
python_with old 2.9.1
python_with new 2.10.0+cu128
python_with none ""
python_with other 2.15.0
printf '#!/bin/sh\nexit 1\n' >broken.sh && mkdir -p broken && mv broken.sh broken/python3 && chmod +x broken/python3

takes "nothing to run" 2.11 old --version
takes "another command" 2.11 old log train.txt
takes "a Python" 2.9 old run -- python3 train.py -q
takes "a Python with a local version" 2.10 new dry-run --gpu=h100 -- python3 train.py
takes "a Python without --" 2.10 new run -q python3 train.py
takes "a Python by its path" 2.9 new run -- "$PWD/old/python3" train.py
takes "a Python without torch" 2.11 none run -- python3 train.py
takes "a Python that fails" 2.11 broken run -- python3 train.py
printf '#!/usr/bin/env -S python3 -u\n' >script && chmod +x script
takes "a script of Python" 2.9 old fit -- ./script
printf '#!%s/new/python3\n' "$PWD" >script
takes "a script of another Python" 2.10 old run -- ./script
printf '#!/bin/sh\n' >script
takes "a program: the Python in PATH tells" 2.9 old run -- ./script
takes "a program, and a torch that the wheel was not built for" 2.11 other run -- ./script
takes "no such program" 2.9 old run -- ./no_such_program
run other run -- python3 train.py
check "a torch that the wheel was not built for: status" equal $? 2
check "a torch that the wheel was not built for: told" equal "$(cat err)" \
  "memledger: this wheel was built for torch 2.9, 2.10, 2.11, and $PWD/other/python3 has torch 2.15"
chmod -x wheel/memledger/lib/2.11/bin/memledger
run old --version
check "a command that cannot be run: status" equal $? 2
check "a command that cannot be run: told" matches err "^memledger: cannot run .*/2.11/bin/memledger: Permission denied$"
chmod +x wheel/memledger/lib/2.11/bin/memledger

# In an environment of its own without torch, as uvx makes one, the program is the caller's.
if "$real_python" -m venv --without-pip own 2>err; then
  PATH="$PWD/own/bin:$PWD/new:$PATH" own/bin/python wheel/memledger_command.py run -- python3 train.py >out 2>err
  check "in an environment of its own" equal "$(cat out err)" "2.10: run -- python3 train.py"
else
  echo "SKIPPED: this Python makes no virtual environments"
fi
finish
