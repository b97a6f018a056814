#pragma once

// Who holds what is still alive at the end of a Python program: variables of its main module, and
// the graphs of the tensors in them.

#include <ATen/core/Tensor.h>

#include <string>

#include "reporter/report.h"

namespace memledger::inside {

// Notes that a variable leads to the tensor: losses[3]. Keeps nothing alive. Called when Python
// begins to end, with its lock.
void add_holder(const char* name, const at::Tensor& tensor) noexcept;

// Fills in ReportRow::held_by of anonymous rows, by the ids of storages. Walks the graphs of the
// first 16 tensors that have one.
void add_holders_to(Report& report);

}  // namespace memledger::inside
