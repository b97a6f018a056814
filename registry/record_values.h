#pragma once

#include "registry/birthplace.h"
#include "registry/core/storage_record.h"

namespace memledger {

// Looks up the names of a birthplace. Stack and adoption are the record's: they stay empty.
Birthplace birthplace_value(const core::Birthplace& birthplace);

}  // namespace memledger
