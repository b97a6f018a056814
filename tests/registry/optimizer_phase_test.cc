#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "registry/core/optimizer_phase.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "registry/core/ledger.h"
#include "registry/core/step_marks.h"
#include "registry/core/thread_context.h"
#include "tests/registry/records.h"

namespace memledger::core {
namespace {

using Mode = OptimizerPhase::Mode;

constexpr uintptr_t kWeight = 0x1000;
constexpr uintptr_t kBias = 0x2000;
constexpr uintptr_t kGradient = 0x3000;  // no parameter, as all below
constexpr uintptr_t kState = 0x4000;
constexpr uintptr_t kInput = 0x5000;
constexpr uintptr_t kResult = 0x6000;
constexpr uintptr_t kOther = 0x7000;

// A program of one thread: runs operators and reports them as the hooks do.
class Program {
 public:
  Program() {
    for (const uintptr_t parameter : {kWeight, kBias}) {
      bear(ledger_, parameter, 64);
      ledger_.mark_parameter_like(parameter);
    }
    for (const uintptr_t address : {kGradient, kInput}) bear(ledger_, address, 64);
  }

  // Runs an operator; the storage that it makes (0: none) is there when its operands have been
  // looked at.
  void run(Mode mode, const char* name, const std::vector<uintptr_t>& operands,
           uintptr_t makes = 0) {
    thread_->op_depth = 1;
    thread_->phase.begin_operator(mode);
    bool first = true;
    for (const uintptr_t operand : operands) {
      const OperatorKind kind = kind_of_operator(name);
      if (thread_->phase.depends_on(kind, first) && ledger_.is_parameter_like(operand))
        thread_->phase.note_parameter(kind, ledger_);
      first = false;
    }
    if (makes != 0) make(makes);
    last_ = thread_->birthplace();
    thread_->phase.end_operator();
    thread_->op_depth = 0;
  }
  void make(uintptr_t address) {
    Ledger::Birth birth;
    birth.address = address;
    birth.nbytes = 64;
    birth.birthplace = thread_->birthplace();
    thread_->phase.note_birth(address, ledger_.note_birth(birth));
  }
  void free(uintptr_t address) { ledger_.note_death(address); }

  void forward() { run(Mode::kForward, "aten::linear", {kInput, kWeight, kBias}); }
  void evaluate(uintptr_t makes = 0) {
    run(Mode::kNoGrad, "aten::linear", {kInput, kWeight, kBias}, makes);
  }
  void step() { run(Mode::kNoGrad, "aten::addcdiv_", {kWeight, kState, kGradient}); }

  // What the storage's record says now: "optimizer, inferred".
  std::string phase_of(uintptr_t address) {
    const uint64_t id = ledger_.id_at(address);
    for (const StorageRecord& record : ledger_.snapshot().records) {
      if (record.id == id) return text(record.birthplace);
    }
    return "not there";
  }
  // That of a storage made at the end of the last operator.
  std::string last_phase() const { return text(last_); }
  std::string phase_outside() const { return text(thread_->birthplace()); }
  ThreadContext& thread() { return *thread_; }

 private:
  static std::string text(const Birthplace& birthplace) {
    return std::string(to_string(birthplace.phase)) +
           (birthplace.phase_inferred ? ", inferred" : "");
  }

  Ledger ledger_;
  std::unique_ptr<ThreadContext> thread_ = std::make_unique<ThreadContext>();
  Birthplace last_;
};

TEST_CASE("grad mode and backward tell the phase where nothing has to be inferred") {
  Program program;
  CHECK(program.phase_outside() == "other");
  program.run(Mode::kForward, "aten::linear", {kInput, kWeight}, kResult);
  CHECK(program.phase_of(kResult) == "forward");
  program.run(Mode::kBackward, "aten::mm", {kGradient, kWeight}, kOther);
  CHECK(program.phase_of(kOther) == "backward");
  program.run(Mode::kNoGrad, "aten::ones", {}, kState);
  CHECK(program.phase_of(kState) == "other");
  program.thread().node_depth = 1;
  CHECK(program.phase_outside() == "backward");
}

TEST_CASE("writing to a parameter under no_grad begins a step, which lasts until grad mode is on") {
  Program program;
  program.forward();
  program.step();
  CHECK(program.last_phase() == "optimizer, inferred");
  CHECK(program.phase_outside() == "other");
  program.run(Mode::kNoGrad, "aten::sqrt", {kState}, kResult);
  CHECK(program.phase_of(kResult) == "optimizer, inferred");
  program.run(Mode::kForward, "aten::relu", {kInput});
  CHECK(program.last_phase() == "forward");
  program.run(Mode::kNoGrad, "aten::sqrt", {kInput}, kOther);
  CHECK(program.phase_of(kOther) == "other");
  CHECK(program.phase_of(kResult) == "optimizer, inferred");
}

TEST_CASE("backward ends a step and begins none") {
  Program program;
  program.step();
  program.run(Mode::kBackward, "aten::add_", {kWeight, kGradient});
  CHECK(program.last_phase() == "backward");
  program.run(Mode::kNoGrad, "aten::sqrt", {kInput});
  CHECK(program.last_phase() == "other");
}

TEST_CASE("an in-place write with grad mode on is no step") {
  Program program;
  program.run(Mode::kForward, "aten::add_", {kWeight, kGradient});
  CHECK(program.last_phase() == "forward");
}

TEST_CASE("state that the first step makes before it writes is the step's") {
  Program program;
  program.run(Mode::kNoGrad, "aten::ones", {}, kOther);
  program.forward();
  program.run(Mode::kNoGrad, "aten::zeros_like", {kWeight}, kState);
  program.run(Mode::kNoGrad, "aten::mul_", {kState});
  CHECK(program.phase_of(kState) == "other");
  program.step();
  CHECK(program.phase_of(kState) == "optimizer, inferred");
  CHECK(program.phase_of(kOther) == "other");  // of before the forward pass
}

TEST_CASE("the input of a test is not the step's, which ended with its last write") {
  Program program;
  program.forward();
  program.step();
  program.run(Mode::kNoGrad, "aten::sqrt", {kState}, kResult);
  program.step();
  program.run(Mode::kNoGrad, "aten::to", {kInput}, kOther);
  CHECK(program.phase_of(kOther) == "optimizer, inferred");  // nothing shows it yet
  program.evaluate();
  CHECK(program.phase_of(kOther) == "other");
  CHECK(program.phase_of(kResult) == "optimizer, inferred");
}

TEST_CASE("what came to a state's address before the step began is not taken for the state") {
  Program program;
  program.run(Mode::kNoGrad, "aten::zeros_like", {kWeight}, kState);
  program.free(kState);
  program.make(kState);  // outside operators
  program.step();
  CHECK(program.phase_of(kState) == "other");
}

TEST_CASE("of very many births before a step the first are corrected") {
  Program program;
  const auto address = [](int i) { return uintptr_t{0x10000} + static_cast<uintptr_t>(i) * 64; };
  for (int i = 0; i < 100; ++i) program.run(Mode::kNoGrad, "aten::zeros", {}, address(i));
  program.step();
  for (int i = 0; i < 100; ++i) {
    CAPTURE(i);
    CHECK(program.phase_of(address(i)) == (i < 64 ? "optimizer, inferred" : "other"));
  }
}

TEST_CASE("a forward pass under no_grad is no step, and parts what comes before and after it") {
  Program program;
  program.run(Mode::kNoGrad, "aten::randn", {}, kState);
  program.evaluate(kResult);
  program.step();
  CHECK(program.last_phase() == "optimizer, inferred");
  CHECK(program.phase_of(kState) == "other");
  CHECK(program.phase_of(kResult) == "other");
  program.evaluate(kOther);
  CHECK(program.phase_of(kOther) == "other");
  program.run(Mode::kNoGrad, "aten::sqrt", {kResult});
  CHECK(program.last_phase() == "other");
}

TEST_CASE("reading parameters as optimizers do neither begins nor ends a step") {
  Program program;
  program.run(Mode::kNoGrad, "aten::add", {kGradient, kWeight}, kResult);  // weight decay
  CHECK(program.last_phase() == "other");
  program.step();
  CHECK(program.phase_of(kResult) == "optimizer, inferred");
  program.run(Mode::kNoGrad, "aten::_foreach_norm", {kWeight, kBias});
  CHECK(program.last_phase() == "optimizer, inferred");
}

TEST_CASE("only what an operator writes to, its first operand, can be stepped") {
  Program program;
  program.run(Mode::kNoGrad, "aten::lerp_", {kState, kWeight});  // an average of the weights
  CHECK(program.last_phase() == "other");
  program.run(Mode::kNoGrad, "aten::addcmul_", {kState, kGradient, kGradient});
  CHECK(program.last_phase() == "other");
}

TEST_CASE("zero_grad() and initialization are no steps") {
  Program program;
  for (const char* const name : {"aten::detach_", "aten::zero_", "aten::detach"}) {
    program.run(Mode::kNoGrad, name, {kGradient});
    CHECK(program.last_phase() == "other");
  }
  for (const char* const name : {"aten::uniform_", "aten::copy_", "aten::zero_"}) {
    program.run(Mode::kNoGrad, name, {kWeight});
    CHECK(program.last_phase() == "other");
  }
  program.step();
  program.run(Mode::kNoGrad, "aten::zero_", {kGradient});  // between two optimizers' steps
  CHECK(program.last_phase() == "optimizer, inferred");
}

TEST_CASE("a scope decides while it is open, and nothing is inferred meanwhile") {
  Program program;
  OptimizerPhase& phase = program.thread().phase;
  phase.open_scope(Phase::kBackward);
  program.step();
  CHECK(program.last_phase() == "backward");
  CHECK(program.phase_outside() == "backward");
  phase.restore_scope(false, Phase::kOther);
  program.run(Mode::kNoGrad, "aten::sqrt", {kInput});
  CHECK(program.last_phase() == "other");
}

TEST_CASE("what was made in a scope keeps the scope's phase when a step begins after it") {
  Program program;
  program.thread().phase.open_scope(Phase::kForward);
  program.run(Mode::kNoGrad, "aten::zeros", {}, kState);
  program.thread().phase.restore_scope(false, Phase::kOther);
  program.run(Mode::kNoGrad, "aten::zeros", {}, kResult);
  program.step();
  CHECK(program.phase_of(kState) == "forward");
  CHECK(program.phase_of(kResult) == "optimizer, inferred");
}

TEST_CASE("an operator goes on in its own phase after the autograd nodes that ran inside it") {
  Program program;
  OptimizerPhase& phase = program.thread().phase;
  phase.begin_operator(Mode::kForward);
  const Phase outer = phase.operator_phase();
  program.run(Mode::kBackward, "aten::mm", {kGradient, kWeight});
  phase.resume_operator(outer);
  program.thread().op_depth = 1;
  CHECK(program.phase_outside() == "forward");
  CHECK_FALSE(phase.may_step());
}

TEST_CASE("scopes nest, and go before grad mode and backward") {
  Program program;
  OptimizerPhase& phase = program.thread().phase;
  phase.open_scope(Phase::kBackward);
  const bool was_set = phase.is_set();
  const Phase before = phase.set_phase();
  phase.open_scope(Phase::kOptimizer);
  program.run(Mode::kForward, "aten::relu", {kInput});
  CHECK(program.last_phase() == "optimizer");
  phase.restore_scope(was_set, before);
  CHECK(program.phase_outside() == "backward");
  program.run(Mode::kForward, "aten::relu", {kInput});
  CHECK(program.last_phase() == "backward");
  phase.restore_scope(false, Phase::kOther);
  CHECK(program.phase_outside() == "other");
  program.run(Mode::kForward, "aten::relu", {kInput});
  CHECK(program.last_phase() == "forward");
}

TEST_CASE("the ledger knows whether an operator has consumed a parameter at all") {
  Ledger ledger;
  bear(ledger, kWeight, 64);
  ledger.mark_parameter_like(kBias);  // not in the table
  CHECK_FALSE(ledger.any_parameter_like());
  ledger.mark_parameter_like(kWeight);
  CHECK(ledger.any_parameter_like());
}

TEST_CASE("operators are told apart by what optimizers do with them") {
  CHECK(kind_of_operator("aten::add_") == OperatorKind::kStep);
  CHECK(kind_of_operator("aten::_foreach_add_") == OperatorKind::kStep);
  CHECK(kind_of_operator("aten::_fused_adam") == OperatorKind::kStep);
  CHECK(kind_of_operator("aten::_foreach_sqrt") == OperatorKind::kNeutral);
  CHECK(kind_of_operator("aten::zeros_like") == OperatorKind::kNeutral);
  CHECK(kind_of_operator("aten::copy_") == OperatorKind::kOther);
  CHECK(kind_of_operator("aten::linear") == OperatorKind::kOther);
  CHECK(kind_of_operator("mine::add_") == OperatorKind::kOther);
  CHECK(kind_of_operator("") == OperatorKind::kOther);

  TraitsById traits;
  for (int twice = 0; twice < 2; ++twice) {
    CHECK(traits.of(7, "aten::add_").kind == OperatorKind::kStep);
    CHECK(traits.of(8, "aten::linear").kind == OperatorKind::kOther);
    CHECK(traits.of(1 << 20, "aten::add").kind == OperatorKind::kNeutral);  // too large an id
    CHECK(traits.of(10, "CompiledFunction").reads_all_layers);
    CHECK(traits.of(11, "aten::set_").may_make_external);
    CHECK_FALSE(traits.of(8, "aten::linear").reads_all_layers);
    CHECK_FALSE(traits.of(8, "aten::linear").may_make_external);
  }
}

// Steps of one thread on a ledger of its own.
class Steps {
 public:
  void bear(uintptr_t address, int64_t bytes = 64) { core::bear(ledger_, address, bytes); }
  void free(uintptr_t address) {
    if (thread().step == ThreadContext::Step::kRan) marks_.note_free(thread(), address);
    ledger_.note_death(address);
  }
  void run() { marks_.note_operator(thread()); }
  void end() { marks_.end(thread()); }
  StepMarks::History history() { return marks_.history(); }
  static ThreadContext& thread() { return this_thread(); }

 private:
  Ledger ledger_;
  StepMarks marks_{ledger_};
};

TEST_CASE("what was alive between steps is known after it has been freed") {
  Steps steps;
  steps.bear(kWeight, 100);
  for (int step = 1; step <= 5; ++step) {
    steps.bear(kGradient, 10);
    steps.run();
    if (step == 1) steps.bear(kState, 1000);
    steps.bear(kResult, 7);  // a temporary
    steps.free(kResult);
    if (step == 4) steps.bear(kOther, 1);  // stays
    steps.end();
    steps.free(kGradient);
  }
  for (const uintptr_t address : {kWeight, kState, kOther}) steps.free(address);
  const StepMarks::History history = steps.history();
  CHECK(history.steps == 5);
  CHECK(sum(history.baseline) == 1110);
  CHECK(sum(history.last) == 1111);
  REQUIRE(history.records.size() == 5);
  CHECK(history.records[0].devices.front().counters.current_bytes == 1110);
  CHECK(history.records[4].devices.front().counters.current_bytes == 1111);
  REQUIRE(history.peaks.size() == 1);
  CHECK(history.peaks.front().step == 5);  // the first with kOther and a temporary
}

TEST_CASE("the last step ends before main's locals do, and with the first of them") {
  Steps steps;
  for (const uintptr_t address : {kWeight, kGradient, kState}) steps.bear(address);
  steps.run();
  steps.bear(kResult);
  steps.free(kResult);
  steps.free(kState);  // the optimizer dies before the net
  steps.free(kWeight);
  CHECK(sum(steps.history().last) == 3 * 64);
  CHECK(steps.history().steps == 1);
}

TEST_CASE("a report in the middle of a step counts it once, and tells what is alive then") {
  Steps steps;
  steps.bear(kWeight, 100);
  steps.run();
  CHECK(steps.history().steps == 1);
  CHECK(sum(steps.history().last) == 100);
  steps.bear(kState, 10);
  steps.run();
  steps.end();
  CHECK(steps.history().steps == 1);
  CHECK(sum(steps.history().last) == 110);
  steps.bear(kOther, 1);
  CHECK(sum(steps.history().last) == 110);
}

TEST_CASE("of a long training every second step is kept, and the last") {
  Steps steps;
  steps.bear(kWeight);
  constexpr auto kMost = static_cast<int64_t>(StepMarks::kMostRecords);
  for (int64_t step = 0; step < 2 * kMost + 7; ++step) {
    steps.run();
    steps.end();
  }
  const StepMarks::History history = steps.history();
  CHECK(history.steps == 2 * kMost + 7);
  CHECK(history.records.size() <= StepMarks::kMostRecords);
  CHECK(history.records.size() >= StepMarks::kMostRecords / 2);
  CHECK(history.records.back().step == 2 * kMost + 7);
  for (size_t i = 0; i + 1 < history.records.size(); ++i) {
    CHECK(history.records[i].step < history.records[i + 1].step);
    CHECK(history.records[i].step % 2 == 0);
  }
}

TEST_CASE("a scope that is an optimizer's is a step, once, however many lie within") {
  Ledger ledger;
  StepMarks marks(ledger);
  ThreadContext& thread = this_thread();
  core::bear(ledger, kWeight, 64);
  thread.phase.open_scope(Phase::kOptimizer);
  thread.phase.open_scope(Phase::kOptimizer);
  leave_phase(thread, true, Phase::kOptimizer, &marks);
  CHECK(marks.history().steps == 0);
  leave_phase(thread, false, Phase::kOther, &marks);
  CHECK(marks.history().steps == 1);
  thread.phase.open_scope(Phase::kForward);
  leave_phase(thread, false, Phase::kOther, &marks);
  CHECK(marks.history().steps == 1);
}

}  // namespace
}  // namespace memledger::core
