#pragma once

// All of memledger.
//
//   memledger::ScopedTracking tracking;  // in the first line of main
//   memledger::MemReporter reporter(model);
//   reporter.add_optimizer(optimizer).add_input("input", input);
//   reporter.report();

#include "graph/counted_hooks.h"
#include "graph/saved_groups.h"
#include "graph/saved_tensors.h"
#include "prediction/predict.h"
#include "registry/registry.h"
#include "registry/training_paused.h"
#include "registry/values_text.h"
#include "reporter/mem_reporter.h"
#include "reporter/out_of_memory.h"
#include "reporter/values_text.h"
#include "tracker/courtesy.h"
#include "tracker/growth_finder.h"
#include "tracker/line_profiler.h"
#include "tracker/log_reader.h"
#include "tracker/mem_tracker.h"
#include "tracker/memory_expectations.h"
#include "tracker/memory_profiler.h"
#include "tracker/model_size.h"
#include "tracker/timeline.h"
#include "tracker/values_text.h"
