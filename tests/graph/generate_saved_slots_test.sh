#!/bin/sh
# The generator of the saved-slot visitor reads all slots, and refuses what it cannot read.
# Arguments: the generator, LibTorch's Functions.h.
set -eu

generator=$1
header=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

complain() {
  echo "FAILED: $1" >&2
  failures=$((failures + 1))
}

# expect_error WHAT MESSAGE: the generator must refuse $work/in.h with MESSAGE.
expect_error() {
  rm -f "$work/out.cc"
  if python3 "$generator" "$work/in.h" "$work/out.cc" 2>"$work/err"; then
    complain "$1: no error"
  fi
  grep -q "$2" "$work/err" || complain "$1: wrong message: $(cat "$work/err")"
  [ ! -e "$work/out.cc" ] || complain "$1: wrote a file nevertheless"
}

# LibTorch's header: every declared saved variable is visited once.
python3 "$generator" "$header" "$work/real.cc"
ones=$(grep -c '^ *SavedVariable [a-zA-Z0-9_]*;' "$header")
lists=$(grep -c '^ *std::vector<SavedVariable> [a-zA-Z0-9_]*;' "$header")
[ "$(grep -c 'visitor.one(' "$work/real.cc")" = "$ones" ] ||
  complain "single slots: not $ones"
[ "$(grep -c 'visitor.list(' "$work/real.cc")" = "$lists" ] ||
  complain "list slots: not $lists"

# A class may be written in several ways.
cat >"$work/in.h" <<'HEADER'
#ifdef _WIN32
struct FirstBackward0 : public TraceableFunction {
  TORCH_API FirstBackward0() = default;
#else
struct TORCH_API FirstBackward0 : public TraceableFunction {
#endif
  void release_variables() override { self_.reset_data(); if (x) { y(); } }
  SavedVariable self_;  // SavedVariable not_this_;
  std::vector<SavedVariable> indices_;
  bool indices_released_ = false;
  at::Scalar alpha = 1;
};
class TORCH_API SecondBackward1 final : public torch::autograd::Node {
 public:
  torch::autograd::SavedVariable result1_;
  std::string text = "{ SavedVariable nor_this_; }";
};
struct ThirdBackward0 : public Node {
  int64_t dim = 0;
};
HEADER
python3 "$generator" "$work/in.h" "$work/out.cc"
for line in \
  'visitor.one("self", typed.self_);' \
  'visitor.list("indices", typed.indices_, typed.indices_released_);' \
  'visitor.one("result1", typed.result1_);' \
  '{&typeid(generated::ThirdBackward0), &visit_nothing},' \
  'return 3;'; do
  grep -qF "$line" "$work/out.cc" || complain "missing: $line"
done
[ "$(grep -c 'visitor\.' "$work/out.cc")" = 3 ] || complain "too many slots"

echo 'struct Plain { int x; };' >"$work/in.h"
expect_error "no node class" "no node class found"

echo 'struct A : public Node { int x; };' >"$work/in.h"
expect_error "no saved variable" "not one saved variable"

echo 'struct A : public Node { SavedVariable a_; at::Tensor b; };' >"$work/in.h"
expect_error "a tensor field" "may hold a tensor"

cat >"$work/in.h" <<'HEADER'
struct A : public Node { SavedVariable a_; };
struct B : public SomethingNew { SavedVariable b_; };
HEADER
expect_error "a class of another base" "declares 2 saved variables, but 1"

printf '#if VERSION > 3\nstruct A : public Node { SavedVariable a_; };\n#endif\n' >"$work/in.h"
expect_error "a condition" "cannot decide"

echo 'struct A : public Node { SavedVariable a_; ' >"$work/in.h"
expect_error "an open brace" "closing brace"

rm "$work/in.h"
expect_error "no file" "No such file"

[ "$failures" = 0 ] || exit 1
echo "all as it should be"
