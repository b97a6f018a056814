#include "reporter/names/optimizer_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace memledger {

std::string name_of(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  if (dynamic_cast<const AdamW*>(&optimizer)) return "AdamW";
  if (dynamic_cast<const Adam*>(&optimizer)) return "Adam";
  if (dynamic_cast<const SGD*>(&optimizer)) return "SGD";
  if (dynamic_cast<const RMSprop*>(&optimizer)) return "RMSprop";
  if (dynamic_cast<const Adagrad*>(&optimizer)) return "Adagrad";
  if (dynamic_cast<const LBFGS*>(&optimizer)) return "LBFGS";
  return "Optimizer";
}

void for_each_state(const torch::optim::Optimizer& optimizer, const c10::TensorImpl* param,
                    const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  using namespace torch::optim;
  const auto& states = optimizer.state();
  // The map's keys are not const, but nothing is written.
  const auto entry = states.find(const_cast<c10::TensorImpl*>(param));
  if (entry == states.end() || entry->second == nullptr) return;
  const OptimizerParamState* const state = entry->second.get();
  if (const auto* adam = dynamic_cast<const AdamParamState*>(state)) {
    visit("exp_avg", adam->exp_avg());
    visit("exp_avg_sq", adam->exp_avg_sq());
    visit("max_exp_avg_sq", adam->max_exp_avg_sq());
  } else if (const auto* adamw = dynamic_cast<const AdamWParamState*>(state)) {
    visit("exp_avg", adamw->exp_avg());
    visit("exp_avg_sq", adamw->exp_avg_sq());
    visit("max_exp_avg_sq", adamw->max_exp_avg_sq());
  } else if (const auto* sgd = dynamic_cast<const SGDParamState*>(state)) {
    visit("momentum_buffer", sgd->momentum_buffer());
  } else if (const auto* rmsprop = dynamic_cast<const RMSpropParamState*>(state)) {
    visit("square_avg", rmsprop->square_avg());
    visit("momentum_buffer", rmsprop->momentum_buffer());
    visit("grad_avg", rmsprop->grad_avg());
  } else if (const auto* adagrad = dynamic_cast<const AdagradParamState*>(state)) {
    visit("sum", adagrad->sum());
  } else if (const auto* lbfgs = dynamic_cast<const LBFGSParamState*>(state)) {
    const auto visit_list = [&](const std::string& name, const auto& list) {
      size_t i = 0;
      for (const at::Tensor& tensor : list) visit(name + "." + std::to_string(i++), tensor);
    };
    visit("d", lbfgs->d());
    visit("H_diag", lbfgs->H_diag());
    visit("prev_flat_grad", lbfgs->prev_flat_grad());
    visit_list("old_dirs", lbfgs->old_dirs());
    visit_list("old_stps", lbfgs->old_stps());
    visit_list("ro", lbfgs->ro());
    if (lbfgs->al().has_value()) visit_list("al", *lbfgs->al());
  }
}

}  // namespace memledger
