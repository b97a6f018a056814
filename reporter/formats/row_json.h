#pragma once

#include "reporter/report.h"
#include "text/json.h"

namespace memledger {

// Adds the members by which reports and why() describe a row in JSON.
void add_row_members(JsonRow& json, const ReportRow& row);

}  // namespace memledger
