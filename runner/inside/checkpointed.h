#pragma once

// Tensors that activation checkpointing was given to keep, to compute what follows again within
// backward. When that has come is not known.

#include <ATen/core/Tensor.h>

#include "reporter/report.h"

namespace memledger::inside {

// Remembers the tensor's storage by its id. Any thread.
void note_checkpointed(const at::Tensor& tensor) noexcept;

// Marks the rows of such storages.
void mark_checkpointed(Report& report);

}  // namespace memledger::inside
