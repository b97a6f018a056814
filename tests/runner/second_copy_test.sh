#!/usr/bin/env bash
# Two copies of memledger in one process: of the same version, they work as one; of another version,
# the second stays off and says so.
source tests/support/shell_test.sh

memledger="$PWD/$1"
program="$PWD/$2"
plugin="$PWD/$3"
host="$PWD/$4"
exporting="$PWD/$5"
cd "$TEST_TMPDIR" || exit 1

shown_on_failure=(out err)
count() { [[ "$(grep -cE -- "$2" "$1")" == "$3" ]] || { echo "  $(grep -cE -- "$2" "$1") times, not $3"; return 1; }; }

# Every report that has an `Explained` line explains all bytes.
reports_agree() { [[ "$(grep -cE '^Explained: .*\(0\.00B unexplained\)' "$1")" == "$(grep -c '^Explained' "$1")" ]]; }

# The same files in another version: only the text of the version differs.
other_version() {
  sed 's/memledger [0-9]\.[0-9]\.[0-9] (LibTorch/memledger 9.8.7 (LibTorch/' "$1" >"$2"
  [[ "$(stat -Lc %s "$1")" == "$(stat -Lc %s "$2")" ]] && ! cmp -s "$1" "$2"
}
other_version "$program" other_program && other_version "$exporting" other_exporting && chmod +x other_* || exit 1
cp "$plugin" first.so && cp "$plugin" second.so && other_version "$plugin" other.so || exit 1
refusal='^memledger: two versions in one process: memledger [0-9.]+ \(LibTorch .*\) was here first and watches; memledger 9\.8\.7 \(LibTorch .*\) stays off$'

# A program that links memledger, under the runner, which brings another copy.
"$memledger" run --report=full -- "$program" >out 2>err
check "status" equal $? 0
check "the program's activation" matches out '^activated: 1$'
check "one allocator" matches out '^allocator of libmemledger\.so$'
check "one deleter" matches out '^freed by libmemledger\.so$'
check "the program's label" matches out '^row of 1048576 bytes, label mine$'
check "one id" matches out '^same by id: 1$'
check "the program's own report" matches out '^kept +\(262144,\) +1\.00M'
check "nothing unexplained" reports_agree out
check "explained at all" count out '^Explained' 1
check "nothing unseen" matches_not out 'before tracking'
check "no trouble" matches out '^trouble: 0$'
check "one report at exit" count err '[(]process [0-9]+, rank 0[)]' 1
check "the runner's totals" matches err '^Explained: 1\.00M of 1\.00M \(0\.00B unexplained\)'
check "the program's label in the runner's report" matches err '\[mine'
check "what was made before main" matches err '4\.00K'
check "nothing unseen in the runner's report" matches_not err 'before tracking|two versions'

"$memledger" run -- "$exporting" >out 2>err
check "a program that exports its copy: status" equal $? 0
check "a program that exports its copy: activated" matches out '^activated: 1$'
check "a program that exports its copy: explained" reports_agree out
check "a program that exports its copy: its label" matches err '\[mine'
check "a program that exports its copy: one report" count err '[(]process [0-9]+, rank 0[)]' 1
check "a program that exports its copy: no trouble" matches out '^trouble: 0$'

# Both, and a plugin with a third copy.
"$memledger" run -- "$program" ./first.so >out 2>err
check "three copies: status" equal $? 0
check "three copies: watched" matches out '^plugin: watched$'
check "three copies: one allocator" count out '^allocator of libmemledger\.so$' 2
check "three copies: nothing unexplained" reports_agree out
check "three copies: the plugin's label" matches err '\[plugin'
check "three copies: no trouble" matches out '^trouble: 0$'
check "three copies: one report at exit" count err '[(]process [0-9]+, rank 0[)]' 1

# Without the runner the program's copy is the first, though its symbols cannot be looked up.
"$program" ./first.so ./second.so >out 2>err
check "the program first: status" equal $? 0
check "the program first: its allocator" count out '^allocator of second_copy_program$' 3
check "the program first: plugins watched" count out '^plugin: watched$' 2
check "the program first: rows of plugins" matches out '^of_plugin +\(2048,\) +8\.00K'
check "the program first: nothing unexplained" reports_agree out
check "the program first: no trouble" matches out '^trouble: 0$'
check "the program first: quiet" equal "$(grep -v '^$' err)" ""
MEMLEDGER=1 "$program" ./first.so >out 2>err
check "no report without the runner's library" matches_not err 'peak allocated'

# Another version is refused, and everybody goes on.
"$program" ./other.so >out 2>err
check "refused: status" equal $? 0
check "refused: said once, with both versions" count err "$refusal" 1
check "refused: its activation" matches out '^plugin: memledger: two versions in one process: .* 9\.8\.7 .* stays off$'
check "refused: follows nothing" matches out '^plugin: follows 0$'
check "refused: the program's copy goes on" matches out '^trouble: 0$'
check "refused: one allocator" count out '^allocator of second_copy_program$' 2
"$memledger" run --report=full -- "$host" ./other.so >out 2>err
check "refused under the runner: status" equal $? 0
check "refused under the runner: said once" count err "$refusal" 1
check "refused under the runner: unknown is ?" matches out '\?'
check "refused under the runner: the result" matches out '^result: 2$'
check "refused under the runner: the report" matches err '^Explained: .*\(0\.00B unexplained\)'
for other in ./other_program ./other_exporting; do
  "$memledger" run --report=full -- "$other" >out 2>err
  check "$other refused under the runner: status" equal $? 0
  check "$other refused under the runner: said once" count err "$refusal" 1
  check "$other refused under the runner: the one report" count err '[(]process [0-9]+, rank 0[)]' 1
  check "$other refused under the runner: the report" matches err '^Explained: .*\(0\.00B unexplained\)'
done
# The other version first: it is the same the other way round.
"$host" ./other.so ./first.so >out 2>err
check "the other version first: status" equal $? 0
check "the other version first: said" matches err '^memledger: two versions in one process: memledger 9\.8\.7 .* was here first and watches; memledger 0'
check "the other version first: watched" count out '^plugin: watched$' 1
check "the other version first: the result" matches out '^result: 3$'

# Two plugins; then with the program's own allocator between them, so that only the C symbol shows
# it.
"$host" ./first.so ./second.so >out 2>err
check "plugins: status" equal $? 0
check "plugins: watched" count out '^plugin: watched$' 2
check "plugins: the result" matches out '^result: 3$'
check "plugins: nothing unexplained" reports_agree out
"$host" ./first.so allocator ./other.so >out 2>err
check "behind an allocator: status" equal $? 0
check "behind an allocator: refused by the symbol" count err "$refusal" 1
"$host" ./first.so allocator ./second.so >out 2>err
check "behind an allocator: status of the same version" equal $? 0
check "behind an allocator: watched" count out '^plugin: watched$' 2
check "behind an allocator: the result" matches out '^result: 3$'
# Likewise for the copy in a program, of whose symbols only that one can be looked up.
"$program" allocator ./first.so >out 2>err
check "a program behind an allocator: status" equal $? 0
check "a program behind an allocator: watched" count out '^plugin: watched$' 1
check "a program behind an allocator: rows of plugins" matches out '^of_plugin +\(2048,\) +8\.00K'
check "a program behind an allocator: one memledger" count out '^allocator of second_copy_program$' 2
check "a program behind an allocator: nothing unexplained" reports_agree out
check "a program behind an allocator: no trouble" matches out '^trouble: 0$'
check "a program behind an allocator: quiet" equal "$(grep -v '^$' err)" ""
"$program" allocator ./other.so >out 2>err
check "another version beside a program behind an allocator: status" equal $? 0
check "another version beside a program behind an allocator: refused" count err "$refusal" 1

finish
