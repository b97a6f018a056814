#pragma once

// All of memledger.
//
//   #include "memledger.h"
//
//   memledger::MemReporter reporter(net);
//   reporter.report();

#include "graph/saved_tensors.h"
#include "registry/registry.h"
#include "reporter/mem_reporter.h"
#include "reporter/out_of_memory.h"
#include "tracker/courtesy.h"
#include "tracker/growth_finder.h"
#include "tracker/line_profiler.h"
#include "tracker/mem_tracker.h"
#include "tracker/memory_expectations.h"
