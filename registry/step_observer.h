#pragma once

// Tells of each operator that writes to a tensor in place under no_grad, on the thread that runs it and before it runs: so do
// optimizers step. What such a thread changes without a lock (an optimizer's states) can be read there and then.

namespace at {
class Tensor;
}

namespace memledger {

// `written` is the operator's first tensor: a parameter or its data(), an optimizer's own state, or anything else.
using StepObserver = void (*)(const at::Tensor& written) noexcept;

// Null: none. A call that has begun on another thread may still run when this returns.
void set_step_observer(StepObserver observer) noexcept;

}  // namespace memledger
