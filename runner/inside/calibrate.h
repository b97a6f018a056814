#pragma once

namespace memledger::inside {

// Follows the program's convolutions on its first device, if environment::kCalibration asks for it.
void calibrate_if_asked();
// Writes what was seen, once; nothing where no CUDA device was used.
void write_calibration();

}  // namespace memledger::inside
