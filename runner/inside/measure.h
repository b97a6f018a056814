#pragma once

namespace memledger::inside {

// Measures this process for `memledger dry-run`, if kMeasureVariable asks for it. Writes down what
// each GPU had to give when the program ends and each time an allocation fails. When the peak no
// longer moves from one optimizer step to the next, it writes and ends the program.
void measure_if_asked();
// Called before the program's main: what is registered now runs at exit before LibTorch goes down.
void measure_main_begins();
// Called when Python begins to end: notes who was alive at the peak, while modules have names.
void measure_before_python_ends();

}  // namespace memledger::inside
